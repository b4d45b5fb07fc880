"""``gdf-market completion``: what a shell needs to complete this program's commands."""

from __future__ import annotations

import rich_click as click
from click.shell_completion import get_completion_class

from gdf_market.commands.common import App, pass_app
from gdf_market.errors import UsageError

PROGRAM, VARIABLE = "gdf-market", "_GDF_MARKET_COMPLETE"
SHELLS = ("bash", "zsh", "fish", "powershell")
WHERE = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/completions/gdf-market.fish",
    "powershell": "$PROFILE",
}

# click knows no PowerShell; it answers there in its fish form: lines of "type,value<TAB>help"
_POWERSHELL = f"""\
Register-ArgumentCompleter -Native -CommandName {PROGRAM} -ScriptBlock {{
    param($wordToComplete, $commandAst, $cursorPosition)
    $line = $commandAst.ToString()
    if ($wordToComplete -eq '') {{ $line += ' ' }}
    $env:{VARIABLE} = 'fish_complete'
    $env:COMP_WORDS = $line
    $env:COMP_CWORD = $wordToComplete
    try {{
        {PROGRAM} | ForEach-Object {{
            $value, $help = ($_ -replace '^[^,]*,', '') -split "`t", 2
            if (-not $help) {{ $help = $value }}
            [System.Management.Automation.CompletionResult]::new($value, $value, 'ParameterValue', $help)
        }}
    }} finally {{
        Remove-Item Env:{VARIABLE}, Env:COMP_WORDS, Env:COMP_CWORD
    }}
}}
"""


def script(shell: str) -> str:
    """Return the text that a start-up file of the shell runs."""
    if shell == "powershell":
        return _POWERSHELL
    kind = get_completion_class(shell)
    assert kind is not None, shell
    from gdf_market.commands import cli

    try:
        return kind(cli, {}, PROGRAM, VARIABLE).source()
    except RuntimeError as error:  # click asks an installed bash for its version
        raise UsageError(f"no completion for this {shell}: {error}") from None


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@pass_app
def completion(app: App, shell: str) -> None:
    """Print the completion script of a shell; add it to the shell's start-up file.

    Example: gdf-market completion bash >> ~/.bashrc
    """
    text = script(shell)
    app.emit({"shell": shell, "script": text, "file": WHERE[shell]}, lambda: text)
