"""``python -m notifyq`` is the command ``notifyq``."""

from notifyq.cli import main

if __name__ == "__main__":
    main(prog_name="notifyq")
