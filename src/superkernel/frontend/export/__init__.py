"""frontend.export: a model and example inputs -> a package: compiled ahead of time, loaded without torch."""
