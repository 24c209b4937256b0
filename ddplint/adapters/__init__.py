"""What frameworks wrap around a model and a loss, turned into a plain target: one file a framework."""
