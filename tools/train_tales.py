"""Train the bundled tale-teller: a small Llama-style model on the Brothers Grimm's Household Tales.

    python tools/train_tales.py tales.txt OUT

`tales.txt` is Margaret Hunt's translation of 1884 (public domain). OUT becomes a Hugging Face checkpoint folder
(config.json, model.safetensors, tokenizer.json, tokenizer_config.json) that `ptegpu export llm` takes, with
`heldout.txt`, tales that the model never saw, and `training.json`, the losses. Needs torch, tokenizers and
safetensors; under a minute on a large GPU. The last part of the training rounds weights to 4 bits in groups on the
way forward, so that the exported 4-bit model loses little.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 2048,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float16",
}
GROUP = 32  # weights that share a 4-bit scale
BEGIN, END = "<|tale|>", "<|end|>"


def read_tales(text: str) -> list[str]:
    """Tales as "title, blank line, paragraphs", lines of a paragraph joined."""
    tales = []
    for part in re.split(r"\n{4,}", text.replace("\r", "")):
        paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", part.strip())]
        if len(paragraphs) > 1:
            title = re.sub(r"^(Legend )?\d+\.?\s+", "", paragraphs[0])
            tales.append("\n".join([title, *paragraphs[1:]]))
    return tales


def train_tokenizer(tales: list[str]) -> Tokenizer:
    """Byte-level byte-pair encoding, so that any text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(tales, trainer)
    return tokenizer


class Round(torch.autograd.Function):
    """4-bit values in groups on the way forward, the identity on the way back."""

    @staticmethod
    def forward(ctx: Any, w: torch.Tensor) -> torch.Tensor:
        g = w.reshape(w.shape[0], -1, GROUP)
        scale = g.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 7.5
        return ((g / scale).round().clamp(-8, 7) * scale).reshape(w.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Tales(nn.Module):
    """A Llama-style decoder whose parameters have Hugging Face's names."""

    def __init__(self) -> None:
        super().__init__()
        c = CONFIG
        d, f, head = c["hidden_size"], c["intermediate_size"], c["head_dim"]
        heads, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
        shapes = {"model.embed_tokens.weight": (c["vocab_size"], d), "model.norm.weight": (d,)}
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            shapes |= {
                p + "input_layernorm.weight": (d,),
                p + "self_attn.q_proj.weight": (heads, d),
                p + "self_attn.k_proj.weight": (kv, d),
                p + "self_attn.v_proj.weight": (kv, d),
                p + "self_attn.o_proj.weight": (d, heads),
                p + "post_attention_layernorm.weight": (d,),
                p + "mlp.gate_proj.weight": (f, d),
                p + "mlp.up_proj.weight": (f, d),
                p + "mlp.down_proj.weight": (d, f),
            }
        self.names = list(shapes)
        depth = math.sqrt(2 * c["num_hidden_layers"])
        self.weights = nn.ParameterDict()
        for name, shape in shapes.items():
            scale = 0.02 / (depth if "o_proj" in name or "down_proj" in name else 1)
            value = torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * scale
            self.weights[name.replace(".", "/")] = nn.Parameter(value)
        self.rounded = False
        angles = torch.arange(c["max_position_embeddings"])[:, None] * (
            c["rope_theta"] ** (-torch.arange(0, head, 2) / head)
        )
        self.register_buffer("cos", torch.cos(torch.cat([angles, angles], -1)), persistent=False)
        self.register_buffer("sin", torch.sin(torch.cat([angles, angles], -1)), persistent=False)

    def weight(self, name: str) -> torch.Tensor:
        w = self.weights[name.replace(".", "/")]
        return Round.apply(w) if self.rounded and w.ndim == 2 else w

    def forward(self, ids: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:  # (B, T) → (B, T, V)
        c = CONFIG
        b, t = ids.shape
        embedding = self.weight("model.embed_tokens.weight")
        x = F.dropout(F.embedding(ids, embedding), dropout)
        for i in range(c["num_hidden_layers"]):
            x = x + F.dropout(self.attend(x, f"model.layers.{i}.", b, t), dropout)
            x = x + F.dropout(self.feed(x, f"model.layers.{i}."), dropout)
        return F.linear(self.norm(x, "model.norm.weight"), embedding)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight(name), CONFIG["rms_norm_eps"])

    def attend(self, x: torch.Tensor, p: str, b: int, t: int) -> torch.Tensor:
        h = self.norm(x, p + "input_layernorm.weight")

        def project(name: str) -> torch.Tensor:  # (B, H, T, D)
            out = F.linear(h, self.weight(p + f"self_attn.{name}_proj.weight"))
            return out.view(b, t, -1, CONFIG["head_dim"]).transpose(1, 2)

        q, k, v = self.rotate(project("q")), self.rotate(project("k")), project("v")
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(out.transpose(1, 2).reshape(b, t, -1), self.weight(p + "self_attn.o_proj.weight"))

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        t = x.shape[2]
        half = x.shape[-1] // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * self.cos[:t] + turned * self.sin[:t]

    def feed(self, x: torch.Tensor, p: str) -> torch.Tensor:
        h = self.norm(x, p + "post_attention_layernorm.weight")
        gate = F.silu(F.linear(h, self.weight(p + "mlp.gate_proj.weight")))
        return F.linear(
            gate * F.linear(h, self.weight(p + "mlp.up_proj.weight")), self.weight(p + "mlp.down_proj.weight")
        )


@torch.no_grad()
def heldout_loss(model: Tales, ids: torch.Tensor, window: int) -> float:
    """Mean negative log-likelihood per token over consecutive windows."""
    model.eval()
    total = count = 0.0
    for start in range(0, len(ids) - 1, window):
        chunk = ids[start : start + window + 1][None]
        loss = F.cross_entropy(model(chunk[:, :-1])[0], chunk[0, 1:], reduction="sum")
        total, count = total + float(loss), count + chunk.shape[1] - 1
    model.train()
    return total / count


def train(model: Tales, ids: torch.Tensor, heldout: torch.Tensor, args: argparse.Namespace) -> list[dict[str, float]]:
    decay = [p for p in model.parameters() if p.ndim == 2]
    plain = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": decay, "weight_decay": args.decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.95))
    log: list[dict[str, float]] = []
    started, best = time.time(), math.inf
    best_weights: dict[str, torch.Tensor] = {}
    for step in range(args.steps):
        warm = min(1.0, (step + 1) / 100)
        fade = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / args.steps))
        for g in optimizer.param_groups:
            g["lr"] = args.rate * warm * fade
        model.rounded = step >= args.steps * 0.6
        at = torch.randint(0, len(ids) - args.window - 1, (args.batch,))
        batch = torch.stack([ids[a : a + args.window + 1] for a in at])
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            logits = model(batch[:, :-1], args.dropout)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % args.every == 0:
            value = heldout_loss(model, heldout, args.window)
            log.append({"step": step + 1, "train": round(float(loss), 4), "heldout": round(value, 4)})
            print(log[-1], f"{time.time() - started:.0f} s", flush=True)
            if model.rounded and value < best:
                best, best_weights = value, {k: v.detach().clone() for k, v in model.state_dict().items()}
    model.load_state_dict(best_weights)
    return log


def save(model: Tales, tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n: model.weights[n.replace(".", "/")].detach().half().cpu().contiguous() for n in model.names}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {"bos_token": BEGIN, "eos_token": END, "add_bos_token": True, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tales", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--decay", type=float, default=1.0)
    parser.add_argument("--dropout", type=float, default=0.35)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--heldout-every", type=int, default=20, help="each such tale is held out")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tales = read_tales(args.tales.read_text(encoding="utf-8"))
    heldout = tales[args.heldout_every // 2 :: args.heldout_every]
    training = [t for t in tales if t not in heldout]
    tokenizer = train_tokenizer(training)

    def encode(texts: list[str]) -> torch.Tensor:
        return torch.tensor(tokenizer.encode("".join(BEGIN + t + END for t in texts)).ids, device=device)

    ids, tests = encode(training), encode(heldout)
    model = Tales().to(device)
    count = sum(p.numel() for p in model.parameters())
    print(f"{count} parameters; {len(training)} tales to learn, {len(heldout)} not; {len(ids)} and {len(tests)} tokens")
    log = train(model, ids, tests, args)
    args.out.mkdir(parents=True, exist_ok=True)
    save(model, tokenizer, args.out)
    (args.out / "heldout.txt").write_text("".join(BEGIN + t + END for t in heldout), encoding="utf-8")
    model.rounded = True
    rounded = heldout_loss(model, tests, args.window)
    model.rounded = False
    characters = sum(map(len, heldout))
    summary = {
        "parameters": count,
        "tokens": len(ids),
        "heldout_tokens": len(tests),
        "heldout_loss": round(rounded, 4),
        "heldout_loss_unrounded": round(heldout_loss(model, tests, args.window), 4),
        "heldout_bits_per_character": round(rounded * len(tests) / characters / math.log(2), 4),
        "arguments": {k: v for k, v in vars(args).items() if k not in ("tales", "out")},
        "log": log,
    }
    (args.out / "training.json").write_text(json.dumps(summary, indent=2) + "\n")
    print({k: v for k, v in summary.items() if k != "log"})


if __name__ == "__main__":
    main()
