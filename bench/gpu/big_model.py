# SPDX-License-Identifier: Apache-2.0
"""Writes a folder with the names, shapes and config of an 8B llama in bfloat16, 16.06 GB of bits that say nothing.

  big_model.py FOLDER [SHRINK]

Prints a line of JSON: the bytes, and the seconds in which threads write them, and read them again.
"""
import json
import os
import struct
import sys
import threading
import time

PIECE = 16 << 20
THREADS = 12


def by_threads(call, length):
    """Seconds in which threads take pieces of a file one after the other."""
    starts = iter(range(0, length, PIECE))
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                start = next(starts, None)
            if start is None:
                return
            call(start, min(PIECE, length - start))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


def main(folder, shrink):
    layers, hidden, inner, heads, kv_heads, words = 32, 4096 // shrink, 14336 // shrink, 32, 8, 128256 // shrink
    kv = hidden // heads * kv_heads
    shapes = {"model.embed_tokens.weight": [words, hidden]}
    for layer in range(layers):
        at = "model.layers.%d." % layer
        shapes.update({
            at + "self_attn.q_proj.weight": [hidden, hidden],
            at + "self_attn.k_proj.weight": [kv, hidden],
            at + "self_attn.v_proj.weight": [kv, hidden],
            at + "self_attn.o_proj.weight": [hidden, hidden],
            at + "mlp.gate_proj.weight": [inner, hidden],
            at + "mlp.up_proj.weight": [inner, hidden],
            at + "mlp.down_proj.weight": [hidden, inner],
            at + "input_layernorm.weight": [hidden],
            at + "post_attention_layernorm.weight": [hidden],
        })  # fmt: skip
    shapes.update({"model.norm.weight": [hidden], "lm_head.weight": [words, hidden]})
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * (shape[0] * shape[1] if len(shape) == 2 else shape[0])
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
            "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "vocab_size": words, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }, file)  # fmt: skip
    path = os.path.join(folder, "model.safetensors")
    target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    begin = 8 + len(text)
    os.pwrite(target, struct.pack("<Q", len(text)) + text, 0)
    # Another stretch of the same bits for each piece, so that no two of them are alike.
    pool = os.urandom(PIECE + (1 << 20))
    length = at
    write = lambda start, size: os.pwrite(target, memoryview(pool)[start // PIECE * 8 :][:size], begin + start)
    written = by_threads(write, length)
    held = [bytearray(PIECE) for _ in range(THREADS)]
    own = threading.local()

    def read(start, size):
        if not hasattr(own, "buffer"):
            own.buffer = held.pop()
        os.preadv(target, [memoryview(own.buffer)[:size]], begin + start)

    seconds = by_threads(read, length)
    os.close(target)
    print(json.dumps({"bytes": length, "writeSeconds": written, "readSeconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
