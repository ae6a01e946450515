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
  targets = ["agent"]
}

target "agent" {
  context   = "."
  target    = "agent"
  platforms = split(",", PLATFORMS)
  tags      = [REGISTRY == "" ? "swarm-agent:${TAG}" : "${REGISTRY}/swarm-agent:${TAG}"]
  args = {
    BASE   = BASE
    PYTHON = PYTHON
  }
  labels = {
    "org.opencontainers.image.title"    = "swarm-agent"
    "org.opencontainers.image.version"  = VERSION
    "org.opencontainers.image.revision" = REVISION == "" ? null : REVISION
    "org.opencontainers.image.source"   = SOURCE == "" ? null : SOURCE
    "org.opencontainers.image.licenses" = "Apache-2.0"
  }
  # Attestations come as one more manifest for a platform "unknown", which a node's scheduler would have to skip.
  attest = ["type=provenance,disabled=true", "type=sbom,disabled=true"]
}
