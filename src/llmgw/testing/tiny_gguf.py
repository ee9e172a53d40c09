"""A random-weights model of half a megabyte that llama.cpp loads at once.

It writes printable ASCII only and never ends by itself, so an answer has exactly `max_tokens`
tokens. `pad_mb` widens it into a file that loads slowly, more `layers` make it answer slowly.
"""

from pathlib import Path
from typing import Final

import gguf
import numpy as np

EMBEDDING: Final = 64
HEADS: Final = 4
FEED_FORWARD: Final = 128
CONTEXT_TOKENS: Final = 4096
SEED: Final = 0
_BYTES_PER_WEIGHT: Final = 4
_FEED_FORWARD_MATRICES: Final = 3
_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's sign for a space."""
_CHAT: Final = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def make_tiny_gguf(path: Path, pad_mb: int = 0, layers: int = 2) -> Path:
    """Write the model to `path` and return it; the same arguments give the same model."""
    width = FEED_FORWARD
    if pad_mb:
        row_bytes = layers * _FEED_FORWARD_MATRICES * EMBEDDING * _BYTES_PER_WEIGHT
        width = max(width, pad_mb * 1024 * 1024 // row_bytes // 32 * 32)
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, layers, width)
    tokens, first_printable = _vocabulary(writer)
    _weights(writer, layers, width, tokens, first_printable)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(writer: gguf.GGUFWriter, layers: int, width: int) -> None:
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(width)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_chat_template(_CHAT)


def _vocabulary(writer: gguf.GGUFWriter) -> tuple[int, int]:
    """Add bytes (so that any text can be read) and printable characters; return both counts."""
    kind = gguf.TokenType
    tokens = [b"<unk>", b"<s>", b"</s>"]
    kinds = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL]
    tokens += [f"<0x{byte:02X}>".encode() for byte in range(256)]
    kinds += [kind.BYTE] * 256
    first_printable = len(tokens)
    printable = [_SPACE, *(chr(code) for code in range(33, 127))]
    tokens += [character.encode() for character in printable]
    kinds += [kind.NORMAL] * len(printable)
    scores = [0.0] * first_printable + [-float(first_printable + i) for i in range(len(printable))]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types([int(each) for each in kinds])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(value=True)
    writer.add_add_eos_token(value=False)
    return len(tokens), first_printable


def _weights(
    writer: gguf.GGUFWriter, layers: int, width: int, tokens: int, first_printable: int
) -> None:
    rng = np.random.default_rng(SEED)

    def add(name: str, rows: int, columns: int) -> None:
        weights = rng.standard_normal((rows, columns), np.float32) * np.float32(0.02)
        writer.add_tensor(f"{name}.weight", weights)

    ones = np.ones(EMBEDDING, np.float32)
    # The first feature is a constant that the output layer reads: only printable tokens win.
    embedding = rng.standard_normal((tokens, EMBEDDING), np.float32) * np.float32(0.5)
    embedding[:, 0] = 4.0
    writer.add_tensor("token_embd.weight", embedding)
    for layer in range(layers):
        block = f"blk.{layer}"
        writer.add_tensor(f"{block}.attn_norm.weight", ones)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{name}", EMBEDDING, EMBEDDING)
        writer.add_tensor(f"{block}.ffn_norm.weight", ones)
        add(f"{block}.ffn_gate", width, EMBEDDING)
        add(f"{block}.ffn_up", width, EMBEDDING)
        add(f"{block}.ffn_down", EMBEDDING, width)
    writer.add_tensor("output_norm.weight", ones)
    output = rng.standard_normal((tokens, EMBEDDING), np.float32) * np.float32(0.3)
    output[:, 0] = -3.0
    output[first_printable:, 0] = 3.0
    writer.add_tensor("output.weight", output)
