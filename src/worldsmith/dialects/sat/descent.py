"""What becomes of the number formats, the scale of the loss, the optimizer, the average and clipping."""

from __future__ import annotations

from worldsmith.dialects.sat.keys import DS, LORA, LOSS_SCALE, NETWORK, OPTIMIZER
from worldsmith.dialects.translation import SpecTranslation, computed, shown

EMA = "sat.ops.FusedEmaAdam"
RATES = {True: (5e-5, 2e-3), False: (1e-6, 5e-5)}
"""Learning rates that are usual with adapters, and without."""


@computed(f"{DS}bf16.enabled", f"{DS}fp16.enabled")
def precision(t: SpecTranslation) -> None:
    bf16, fp16 = f"{DS}bf16.enabled", f"{DS}fp16.enabled"
    if t.get(bf16) and t.get(fp16):
        t.refuse(fp16, "bf16 and fp16 are both on", f"{fp16}=false")
        return
    key, other = (fp16, bf16) if t.get(fp16) else (bf16, fp16)
    ours = "float32" if not t.get(key) else "float16" if key == fp16 else "bfloat16"
    t.put("model.config.precision", ours, source=key)
    model, usual = ("2B", "float16") if t.get(f"{NETWORK}num_layers") == 30 else ("5B", "bfloat16")
    odd = ours not in (usual, "float32")
    note = f"; CogVideoX-{model} was trained in {usual}" if odd else ""
    t.say(key, "renamed", f"model.config.precision = {ours}{note}", loud=odd)
    t.say(other, "kept", "off")


@computed(*(f"{DS}fp16.{name}" for name in LOSS_SCALE))
def loss_scale(t: SpecTranslation) -> None:
    """DeepSpeed's scale; what it is there without a word is written too."""
    power, static, window, hysteresis, least = (f"{DS}fp16.{name}" for name in LOSS_SCALE)
    if not t.get(f"{DS}fp16.enabled"):
        for key in (power, static, window, hysteresis, least):
            t.say(key, "unneeded", "without float16 there is no scale of the loss")
        return
    fixed = t.get(static)
    first, after = fixed or 2.0 ** t.get(power), None if fixed else t.get(window)
    t.put("trainer.loss_scale.init_scale", first, source=static if fixed else power)
    t.put("trainer.loss_scale.growth_interval", after, source=static if fixed else window)
    said = f"trainer.loss_scale.init_scale = {first:g}, growth_interval = {shown(after)}"
    t.say(static, "renamed", said if fixed else "0: the scale follows the overflows")
    t.say(power, "unneeded" if fixed else "renamed", "loss_scale says it" if fixed else said)
    t.say(window, "unneeded" if fixed else "renamed", "the scale stays" if fixed else said)
    for key, text in ((hysteresis, "every overflow halves the scale"), (least, "the scale has no lower end")):
        t.say(key, "unneeded" if fixed else "approximated", "the scale stays" if fixed else text)


@computed(
    f"{DS}optimizer.type", f"{OPTIMIZER}ema_decay", f"{OPTIMIZER}lr", f"{OPTIMIZER}weight_decay", f"{OPTIMIZER}betas"
)
def optimizer(t: SpecTranslation) -> None:
    kind, key = t.get(f"{DS}optimizer.type") or "", f"{DS}optimizer.type"
    if kind not in (EMA, "Adam", "AdamW"):
        t.refuse(key, f"'{kind}' cannot be had" if kind else "no value is given", f"{key}={EMA}, Adam or AdamW")
        return
    t.put("model.config.ema.enabled", kind == EMA, source=key)
    t.say(key, "renamed", f"AdamW, with decoupled weight decay; model.config.ema.enabled = {str(kind == EMA).lower()}")
    if kind == EMA:
        t.move(f"{OPTIMIZER}ema_decay", "model.config.ema.max_decay", "renamed")
    else:
        t.say(f"{OPTIMIZER}ema_decay", "unneeded", "there is no average")
    adapted, rate = bool(t.get(LORA.rstrip("."))), t.get(f"{OPTIMIZER}lr")
    least, most = RATES[adapted]
    odd = not least <= rate <= most
    t.put("optimizer.lr", rate, source=f"{OPTIMIZER}lr")
    note = f"; {least:g} to {most:g} is usual {'with' if adapted else 'without'} adapters" if odd else ""
    t.say(f"{OPTIMIZER}lr", "renamed", f"optimizer.lr = {rate:g}{note}", loud=odd)
    t.move(f"{OPTIMIZER}betas", "optimizer.betas", "renamed")
    decay = t.get(f"{OPTIMIZER}weight_decay")
    t.put("optimizer.weight_decay", decay, source=f"{OPTIMIZER}weight_decay")
    t.put("optimizer.decay_vectors", False, source=f"{OPTIMIZER}weight_decay")
    text = f"optimizer.weight_decay = {decay:g}, decay_vectors = false: biases and weights of norms have none"
    t.say(f"{OPTIMIZER}weight_decay", "renamed", text)


@computed(f"{DS}gradient_clipping")
def clipping(t: SpecTranslation) -> None:
    key, norm = f"{DS}gradient_clipping", t.get(f"{DS}gradient_clipping")
    most = norm if isinstance(norm, float | int) and norm > 0 else 1e30
    t.put("trainer.callbacks.grad_clip.clip_norm", most, source=key)
    t.say(
        key, "renamed", f"trainer.callbacks.grad_clip.clip_norm = {most:g}{'' if most < 1e30 else ': never so large'}"
    )
