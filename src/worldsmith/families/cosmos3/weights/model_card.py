"""Writes the README.md of each kind of exported folder from the description in its worldsmith.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worldsmith.checkpoint.formats.export_folder import origin, parameters


def pipeline_card(name: str, about: Mapping[str, Any]) -> str:
    """Returns the model card (Markdown) of a pipeline: description, loading, and generation settings as in training.

    Args:
        name: Name of the exported folder.
        about: Content of its worldsmith.json.
    """
    generation, dtype = about["generation"], about["dtype"]
    size = {key: generation[key] for key in ("height", "width", "num_frames", "fps") if generation[key] is not None}
    arguments = {
        **size,
        "num_inference_steps": generation["steps"],
        "guidance_scale": generation["guidance"],
        "add_duration_template": False,
        "add_resolution_template": False,
    }
    call = "".join(f", {key}={value!r}" for key, value in arguments.items())
    return f"""---
library_name: diffusers
pipeline_tag: text-to-video
---

# {name}

A Cosmos3-style video generator{parameters(about)}: {origin(about, "weights")}.

{format_facts(about)}```python
import torch
from diffusers import Cosmos3OmniPipeline
pipeline = Cosmos3OmniPipeline.from_pretrained("{name}", dtype=torch.{dtype})
```

A video, with the settings that belong to these weights:

```python
frames = pipeline("a prompt"{call}).video
```

{metadata_advice(generation)}
On the command line: `worldsmith generate {name} --prompt "a prompt"`.
"""


def adapter_card(name: str, about: Mapping[str, Any]) -> str:
    """Returns the adapter card (Markdown): base weights, and how PEFT and diffusers load the adapter.

    Args:
        name: Name of the exported folder.
        about: Content of its worldsmith.json.
    """
    base = f"`{about['base_model']}`" if about["base_model"] else "the initial weights of the run"
    return f"""---
library_name: peft
pipeline_tag: text-to-video
tags: [lora]
---

# {name}

LoRA adapters (rank {about["rank"]}, alpha {about["alpha"]}, {about["layers"]} layers) of a Cosmos3-style
video generator: {origin(about, "ones")}.
They apply only to {base}, called `BASE` below (a diffusers pipeline).

{format_facts(about)}```python
from diffusers import Cosmos3OmniTransformer
from peft import PeftModel
transformer = Cosmos3OmniTransformer.from_pretrained("BASE", subfolder="transformer")
transformer = PeftModel.from_pretrained(transformer, "{name}")
```

or, with diffusers only:

```python
transformer.load_lora_adapter("{name}", prefix="base_model.model", weight_name="adapter_model.safetensors")
```

{metadata_advice(about["generation"])}"""


def native_card(name: str, about: Mapping[str, Any]) -> str:
    """Returns the card (Markdown) of an export in the native format.

    Args:
        name: Name of the exported folder.
        about: Content of its worldsmith.json.
    """
    return f"""---
library_name: worldsmith
pipeline_tag: text-to-video
---

# {name}

The weights of a Cosmos3-style video generator{parameters(about)} under their internal parameter names
(`model.net.…`), without the video VAE: {origin(about, "ones")}.
`config.json` contains the complete config of the generator, `text_tokenizer/` its tokenizer.

{format_facts(about)}- To train from it: `checkpoint.load_path` = this folder.
- To generate videos: `worldsmith generate {name} --prompt "a prompt"`, on a machine with the VAE that is named in
  `worldsmith.json`: `{about["model"]["config"]["tokenizer"]["vae_path"]}`.
- As a diffusers pipeline: `worldsmith export {name} -o DIR`.

{metadata_advice(about["generation"])}"""


def format_facts(about: Mapping[str, Any]) -> str:
    """Returns paragraphs (Markdown) on training data, evaluation results and sample frames, as far as `about` has them.

    Args:
        about: Content of worldsmith.json.
    """
    card, video = about.get("card", {}), about["generation"]
    paragraphs = []
    if card.get("data"):
        known = [f"{video['height']}x{video['width']} pixels"] if video["height"] and video["width"] else []
        known += [f"{video['num_frames']} frames"] if video["num_frames"] else []
        known += [f"{video['fps']:g} frames per second"] if video["fps"] else []
        size = f", such as {', '.join(known)}" if known else ""
        paragraphs.append(f"Trained on `{card['data']}`: {card['clips']} clips, {card['windows']} windows{size}.")
    if "measured" in card:
        measured = ", ".join(f"{name} {value:g}" for name, value in card["measured"].items())
        paragraphs.append(f"Measured by `worldsmith evaluate`: {measured}.")
    if "frames" in card:
        paragraphs.append(f"![frames of generated videos]({card['frames']})")
    return "".join(f"{paragraph}\n\n" for paragraph in paragraphs)


def metadata_advice(generation: Mapping[str, Any]) -> str:
    """Returns a paragraph (Markdown) on the format of prompts: the sentences that follow captions in training.

    Args:
        generation: Generation defaults, the section `generation` of worldsmith.json.
    """
    advice = "Structured captions (JSON) are used unchanged. Plain captions end with one period."
    height, width, frames, fps = (generation[key] for key in ("height", "width", "num_frames", "fps"))
    sentences = []
    if generation["append_duration_fps"]:
        seconds, rate = (f"{frames / fps:.1f}", f"{fps:.0f}") if frames and fps else ("S", "F")
        sentences.append(f'"The video is {seconds} seconds long and is of {rate} FPS."')
    if generation["append_resolution"]:
        size = f"{height}x{width}" if height and width else "HxW"
        sentences.append(f'"This video is of {size} resolution."')
    if sentences:
        advice += f"""
In training, captions were followed by {" ".join(sentences)}
with the values of the clip: end the prompt in the same way. The templates of the pipeline also do this, but they add
negated sentences, which never occurred in training, to the negative prompt."""
    return f"{advice}\n"
