"""Tests of whole models."""
