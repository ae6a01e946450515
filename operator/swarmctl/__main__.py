"""The command's entry point; says how to install the operator where only the agent is installed."""

import sys

OPERATOR_PACKAGES = {"typer", "rich", "yaml", "requests", "plotext"}


def main() -> None:
    """Run ``swarmctl``."""
    try:
        from .cli import run
    except KeyboardInterrupt:  # so soon that nothing was begun
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OPERATOR_PACKAGES:
            raise
        sys.exit(
            f"swarmctl: the package {error.name!r} is missing: this is an install of the agent only.\n"
            "Type: pip install 'swarmctl[operator]'"
        )
    sys.exit(run())


if __name__ == "__main__":
    main()
