"""A command of somebody else's package."""

import typer

app = typer.Typer()


@app.command()
def hello(name: str = "world") -> None:
    """Say hello."""
    typer.echo(f"hello {name}")


interrupted = typer.Typer()


@interrupted.command()
def wait(output: str = "table") -> None:
    """Wait until it is interrupted, which is at once."""
    raise KeyboardInterrupt
