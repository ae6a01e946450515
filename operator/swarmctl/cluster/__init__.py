"""Stacks on a swarm: what a stack file wants, what the swarm has, and how the one becomes the other."""
