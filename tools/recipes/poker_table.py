"""Print the results of tools/recipes/poker.sh, a row per seed: how exploitable the players are.

python tools/recipes/poker_table.py outputs/poker kuhn_poker
"""

import json
import sys
from pathlib import Path


def main(out: Path, game: str) -> None:
    """Print the table of a game's seeds.

    Args:
        out: POKER_OUT.
        game: E.g. "kuhn_poker".
    """
    print("| seed | uniform | start | last players | average of the second half |")
    print("|---|---|---|---|---|")
    for path in sorted(out.glob(f"{game}-*/exploit.json")):
        profiles = json.loads(path.read_text())["profiles"]
        values = {name: f"{row['exploitability']:.4f}" for name, row in profiles.items()}
        averages = [value for name, value in values.items() if "average" in name]
        # The recipe lists them first: as `served`, or by the run's folder.
        last_players = next(iter(values.values()))
        seed = path.parent.name.removeprefix(f"{game}-")
        cells = [seed, values["uniform"], values["base"], last_players, *averages]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
