"""Tests of the operators in superkernel.ops."""
