"""`tersify allocate`: a method and a width for each layer, from measured sensitivity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tersify.cli.common import (
    DATA_HELP,
    MaxDecodedBytes,
    Overwrite,
    allowed,
    check_free,
    pairs,
)
from tersify.cli.completion import data_sets, networks

if TYPE_CHECKING:
    from tersify.lab.allocate import Plan


def allocate(
    target: Annotated[
        str,
        typer.Argument(
            help="The network: a reference network's name or file.py:function.",
            autocompletion=networks,
        ),
    ],
    weights: Annotated[
        Path,
        typer.Option(
            help="Its trained weights: .terse, .safetensors or a torch checkpoint."
        ),
    ],
    data: Annotated[str, typer.Option(help=DATA_HELP, autocompletion=data_sets)],
    out: Annotated[Path, typer.Option(help="The recipe to write.")],
    budget: Annotated[
        int | None, typer.Option(help="Bytes that codes and tables may take.")
    ] = None,
    drop: Annotated[
        float | None,
        typer.Option(help="Accuracy points that may be lost, instead of --budget."),
    ] = None,
    images: Annotated[
        int,
        typer.Option(min=1, help="Training images that sensitivity is measured on."),
    ] = 500,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write the trade-off curve as HTML (needs plotly)."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Also write the compressed network, as a .terse file."),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for the network; repeatable.")
    ] = None,
    overwrite: Overwrite = False,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Quantize one layer at a time, fill the budget by the knapsack, and write the
    recipe.

    Accuracies, and with --drop the choice, are those on training images that measured
    sensitivity does not use.
    """
    import tersify
    from tersify.codec.atomic import write_text
    from tersify.lab import dataset, resolve_target
    from tersify.lab.allocate import Budget, allocate_on
    from tersify.lab.stored_networks import load_weights

    if plot is not None:
        _plotly()
    if (budget is None) == (drop is None):
        raise ValueError("give --budget BYTES or --drop POINTS, one of them")
    wanted = Budget(bytes=budget, drop=drop)
    taken: dict[Path, str] = {}
    for path, flag in ((out, "--out"), (save, "--save"), (plot, "--plot")):
        if path is not None:
            check_free(weights, path, overwrite, flag=flag)
            if (other := taken.setdefault(path.resolve(), flag)) != flag:
                raise ValueError(f"{flag} is the file of {other}; give it another name")
            path.parent.mkdir(parents=True, exist_ok=True)
    options = pairs(option, "--option")
    model = load_weights(
        resolve_target(target, **options), weights, **allowed(max_decoded_bytes)
    ).eval()
    loaded = dataset(data, root=data_root)
    found = allocate_on(model, loaded, wanted, images=images, tell=typer.echo)
    for plan in found.plans:
        typer.echo(f"{plan.size_bytes:>12,} bytes   predicted damage {plan.damage:.3g}")
    chosen = found.chosen
    write_text(out, chosen.recipe().to_toml())
    typer.echo(
        f"{out}: {chosen.size_bytes:,} bytes of codes and tables, predicted damage {chosen.damage:.3g}"
    )
    told = (
        f"{found.before:.2f} % before, {found.after:.2f} % after, on {found.held_out:,} training images that "
        "sensitivity did not see"
    )
    typer.echo(told)
    if save:
        packed = tersify.compress_(model, chosen.recipe())
        packed.metadata |= {
            "target": {"name": target, "options": options},
            "data": data,
            "input": list(loaded.shape),
        }
        typer.echo(f"{save}: {tersify.save(packed, save):,} bytes")
    if plot:
        _plot(found.plans, chosen, f"{target}: {told}", plot)
        typer.echo(f"{plot}: the trade-off curve")


def _plotly() -> Any:
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise ValueError(
            "plotting needs plotly; pip install 'tersify[plots]', or leave --plot out"
        ) from None
    return go


def _plot(plans: Sequence[Plan], chosen: Plan, title: str, path: Path) -> None:
    from tersify.codec.atomic import write_text

    figure = _plotly().Figure()
    sizes, damages = [p.size_bytes for p in plans], [p.damage for p in plans]
    figure.add_scatter(x=sizes, y=damages, mode="lines+markers", name="plans")
    figure.add_scatter(
        x=[chosen.size_bytes],
        y=[chosen.damage],
        mode="markers",
        name="chosen",
        marker={"size": 14},
    )
    figure.update_xaxes(title="bytes of codes and tables")
    figure.update_yaxes(
        title="predicted damage, fraction of the outputs' variance", type="log", dtick=1
    )
    figure.update_layout(title=title, template="plotly_white", height=560)
    write_text(path, figure.to_html(include_plotlyjs=True))
