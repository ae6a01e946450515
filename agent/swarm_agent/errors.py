"""What can go wrong for a user of the agent, each with the words to mend it.

Imports nothing of ours. The commands print an ``AgentError`` as one message and end with status 1; anything
else that escapes is a fault of ours and keeps its traceback.
"""


class AgentError(Exception):
    """Base of all errors that a user can mend; the message says what, where and what to do."""


class ConfigError(AgentError):
    """A configuration file, environment variable or option is wrong."""


class DataError(AgentError):
    """Training data is missing, broken or does not fit the model."""


class CheckpointError(AgentError):
    """A checkpoint can't be written or read."""


class DivergedError(CheckpointError):
    """The weights are not finite any more; the newest checkpoint was written before that."""


class ModelError(AgentError):
    """A model can't be built, or is not the one that the other side has."""


class RefusedError(AgentError):
    """The coordinator turned this worker away for a reason that trying again will not mend."""


class UnreachableError(AgentError):
    """The coordinator did not answer within the attempts that were allowed."""
