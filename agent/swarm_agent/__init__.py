"""The agent: coordinator and workers that train together."""
