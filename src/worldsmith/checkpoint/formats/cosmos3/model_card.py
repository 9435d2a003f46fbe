"""The README.md of each kind of exported folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def model_card(name: str, manifest: dict[str, Any]) -> str:
    """Markdown: what the folder is, how to load it, and how to ask for videos as they were in training."""
    source, generation, dtype = manifest["source"], manifest["generation"], manifest["dtype"]
    size = {key: generation[key] for key in ("height", "width", "num_frames", "fps") if generation[key] is not None}
    arguments = {
        **size,
        "num_inference_steps": generation["steps"],
        "guidance_scale": generation["guidance"],
        "add_duration_template": False,
        "add_resolution_template": False,
    }
    call = "".join(f", {key}={value!r}" for key, value in arguments.items())
    run = f" of the run `{source['run']}`" if source["run"] else ""
    return f"""---
library_name: diffusers
pipeline_tag: text-to-video
---

# {name}

A Cosmos3-style video generator: the {source["weights"]} weights{run} after {source["iteration"]} steps, in {dtype},
exported by Worldsmith {manifest["worldsmith"]}.

```python
import torch
from diffusers import Cosmos3OmniPipeline
pipeline = Cosmos3OmniPipeline.from_pretrained("{name}", torch_dtype=torch.{dtype})
```

A video, with the settings that belong to these weights:

```python
frames = pipeline("a prompt"{call}).video
```

{metadata_advice(generation)}
The same from the command line: `worldsmith generate {name} --prompt "a prompt"`.
"""


def adapter_card(name: str, manifest: dict[str, Any]) -> str:
    """Markdown: what the adapter is, which weights it belongs to, and how PEFT and diffusers load it."""
    source, base = (
        manifest["source"],
        f"`{manifest['base_model']}`" if manifest["base_model"] else "the weights that the run started from",
    )
    run = f" of the run `{source['run']}`" if source["run"] else ""
    return f"""---
library_name: peft
pipeline_tag: text-to-video
tags: [lora]
---

# {name}

Low-rank adapters (rank {manifest["rank"]}, alpha {manifest["alpha"]}, {manifest["layers"]} layers) of a Cosmos3-style
video generator: the {source["weights"]} ones{run} after {source["iteration"]} steps, in {manifest["dtype"]},
exported by Worldsmith {manifest["worldsmith"]}. They belong to {base}, and to no other weights: these are `BASE` below,
as a diffusers pipeline.

```python
from diffusers import Cosmos3OmniTransformer
from peft import PeftModel
transformer = Cosmos3OmniTransformer.from_pretrained("BASE", subfolder="transformer")
transformer = PeftModel.from_pretrained(transformer, "{name}")
```

or, with diffusers alone:

```python
transformer.load_lora_adapter("{name}", prefix="base_model.model", weight_name="adapter_model.safetensors")
```

{metadata_advice(manifest["generation"])}"""


def native_card(name: str, manifest: Mapping[str, Any]) -> str:
    """Markdown: what the native export holds, and what reads it."""
    source = manifest["source"]
    run = f" of the run `{source['run']}`" if source["run"] else ""
    return f"""---
library_name: worldsmith
pipeline_tag: text-to-video
---

# {name}

The weights of a Cosmos3-style video generator under their native names (`model.net.…`), without the video VAE: the
{source["weights"]} ones{run} after {source["iteration"]} steps, in {manifest["dtype"]}, exported by Worldsmith
{manifest["worldsmith"]}. `config.json` holds the whole config of the generator, `text_tokenizer/` its tokenizer.

- To train from it: `checkpoint.load_path` = this folder.
- To make videos: `worldsmith generate {name} --prompt "a prompt"`, on a machine where the VAE that `worldsmith.json`
  names is found: `{manifest["model"]["config"]["tokenizer"]["vae_path"]}`.
- As a diffusers pipeline: `worldsmith export {name} -o DIR`.

{metadata_advice(manifest["generation"])}"""


def metadata_advice(generation: dict[str, Any]) -> str:
    advice = "Structured captions (JSON) are used as they stand. Plain captions end in one period."
    sentences = [
        sentence
        for flag, sentence in (
            ("append_duration_fps", '"The video is 2.1 seconds long and is of 8 FPS."'),
            ("append_resolution", '"This video is of 64x64 resolution."'),
        )
        if generation[flag]
    ]
    if sentences:
        advice += f"""
In training they were followed by {" ".join(sentences)}
with the clip's own numbers: end the prompt in that way. The pipeline's own templates do so too, but they also put
negated sentences, which training never showed, into the negative prompt."""
    return f"{advice}\n"
