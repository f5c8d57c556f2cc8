"""The floor of R14: `engine_floor.py OPTIONS`.

It imports vLLM once, loads the model and samples one token, all in this process.
"""

import json
import sys

if __name__ == "__main__":
    from vllm import LLM, SamplingParams

    engine = LLM(**json.loads(sys.argv[1]))
    engine.generate(
        {"prompt_token_ids": [1]}, SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False
    )
    print("first token", flush=True)
