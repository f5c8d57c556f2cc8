"""Give an untrained tiny model the weights of one that knows another number of players.

python tools/recipes/transfer_words.py TRAINED UNTRAINED

Both networks have the same shape; only their vocabularies differ. All weights are copied, and the
embeddings of the words that both know; other words keep their random embeddings.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def transfer(source: Path, target: Path) -> int:
    """Copy weights from one model folder into another.

    Args:
        source: The trained model.
        target: The untrained model; its weights are replaced.

    Returns:
        The number of words that both know.

    Raises:
        RuntimeError: The networks have different shapes.
    """
    trained = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    number_of = AutoTokenizer.from_pretrained(source).get_vocab()
    own = model.get_input_embeddings().weight.detach().clone()
    known = trained.get_input_embeddings().weight.detach()
    num_shared = 0
    for word, number in AutoTokenizer.from_pretrained(target).get_vocab().items():
        if word in number_of:
            own[number] = known[number_of[word]]
            num_shared += 1
    weights = trained.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = own
    model.load_state_dict(weights)
    model.save_pretrained(target)
    return num_shared


if __name__ == "__main__":
    num_shared = transfer(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{sys.argv[2]}: the weights of {sys.argv[1]} and the embeddings of {num_shared} words")
