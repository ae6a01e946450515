"""The machines: from bare hosts with SSH and Docker to a labelled swarm."""
