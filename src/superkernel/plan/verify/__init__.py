"""plan.verify: a plan in; the proof of its properties, or what is wrong with it, out."""
