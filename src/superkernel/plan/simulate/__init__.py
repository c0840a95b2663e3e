"""plan.simulate: a plan in; what random interleavings of its cores do out."""
