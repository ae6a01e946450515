"""The operator: what a person types."""
