"""What a rollout server is."""

from pydantic import BaseModel

from hanabi_grpo.wire import PROTOCOL


class ServerIdentity(BaseModel):
    """What this server is; a trainer compares it before the first step."""

    protocol: int = PROTOCOL
    instance_id: str
    model: str
    model_fingerprint: str
    chat_hash: str
    dtype: str
    max_lora_rank: int
    max_players: int
    max_model_len: int
