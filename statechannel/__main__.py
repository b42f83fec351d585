"""`python -m statechannel`: the command `statechannel`."""

from statechannel.cli.main import main

if __name__ == "__main__":
    main()
