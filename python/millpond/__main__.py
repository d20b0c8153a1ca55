"""``python -m millpond doctor``: what this machine has for millpond."""

import argparse
import sys

from ._doctor import report


def main():
    """Parses the command line; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m millpond", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="say what is there, what works, and what is missing")
    parser.parse_args()
    return report(sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
