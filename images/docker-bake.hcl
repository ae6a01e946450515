# What `swarmctl build` and `swarmctl push` build; they set the variables in the environment.

variable "REGISTRY" {
  default = ""
}
variable "TAG" {
  default = "latest"
}
variable "PLATFORMS" {
  default = "linux/amd64,linux/arm64"
}
variable "BASE" {
  default = "python:3.12-slim-bookworm"
}
variable "PYTHON" {
  default = "3.12"
}
variable "VERSION" {
  default = ""
}
variable "REVISION" {
  default = ""
}
variable "SOURCE" {
  default = ""
}

group "default" {
  targets = ["agent", "operator"]
}

function "named" {
  params = [name]
  result = REGISTRY == "" ? "${name}:${TAG}" : "${REGISTRY}/${name}:${TAG}"
}

target "common" {
  context   = "."
  platforms = split(",", PLATFORMS)
  args = {
    BASE   = BASE
    PYTHON = PYTHON
  }
  labels = {
    "org.opencontainers.image.version"  = VERSION
    "org.opencontainers.image.revision" = REVISION == "" ? null : REVISION
    "org.opencontainers.image.source"   = SOURCE == "" ? null : SOURCE
    "org.opencontainers.image.licenses" = "Apache-2.0"
  }
  # Attestations come as one more manifest for a platform "unknown", which a node's scheduler would have to skip.
  attest = ["type=provenance,disabled=true", "type=sbom,disabled=true"]
}

# Coordinator and workers.
target "agent" {
  inherits = ["common"]
  target   = "agent"
  tags     = [named("swarm-agent")]
  labels = {
    "org.opencontainers.image.title" = "swarm-agent"
  }
}

# The same with swarmctl in it, for `swarmctl reconcile` as a service of the swarm.
target "operator" {
  inherits = ["common"]
  target   = "operator"
  tags     = [named("swarmctl")]
  labels = {
    "org.opencontainers.image.title" = "swarmctl"
  }
}
