"""A training loop from the parts of Worldsmith, without `Trainer`: a data set, a model, an objective, save and resume.

`python examples/train.py [FOLDER] [--steps N]` trains a tiny video generator on moving shapes, in seconds on a CPU. The
same command resumes from the last checkpoint, with the losses of an uninterrupted run. Copy it to write another loop.
"""

import argparse
from itertools import islice
from pathlib import Path

import torch

from worldsmith.assets import asset_path
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.demo.moving_shapes import MovingShapes
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.task import layout_of
from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.files.atomic import replacing
from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.objectives.rectified_flow import RectifiedFlow

SEED, SAVE_EVERY = 0, 2
parser = argparse.ArgumentParser(description="Trains a tiny video generator without Trainer.")
parser.add_argument("folder", nargs="?", type=Path, default=Path("outputs/training_loop"))
parser.add_argument("--steps", type=int, default=20)
args = parser.parse_args()
# The data set: eight MP4 files with captions.
MovingShapes(clips=8, val_clips=0, num_frames=5).make(args.folder / "data")
# The model: a network with random weights from the seed, a frozen video VAE and a tokenizer.
model: Cosmos3Generator = Cosmos3Generator.Config(
    precision="float32",
    network=NetworkConfig(vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=2,
                          num_attention_heads=2, num_key_value_heads=1, head_dim=64, mrope_section=[12, 10, 10]),
    tokenizer=WanVAE.Config(vae_path=str(asset_path("tiny_vae")), precision="float32"),
    text_tokenizer=TextTokenizer.Config(path=str(asset_path("tiny_tokenizer"))),
).build(seed=SEED)  # fmt: skip
# The loader: an endless stream of packs of four samples, in an order that depends on the seed only.
clips = VideoDataset.Config(path=str(args.folder / "data"), resolution="64", min_frames=5)
stream = VideoLoader.Config(dataset=clips, max_samples_per_batch=4, seed=SEED)
loader: VideoLoader = stream.build(grid=LatentGrid(*model.latent_grid), tokenizer=model.tokenize)
# The objective: rectified flow. Noise depends on the seed and the position of a sample in the stream only.
objective: RectifiedFlow = RectifiedFlow.Config().build()
optimizer = torch.optim.AdamW(model.network.parameters(), lr=1e-3)

start, checkpoint = 0, args.folder / "checkpoint.pt"
if checkpoint.exists():
    state = torch.load(checkpoint, weights_only=True)
    model.network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_states([state["loader"]])
    start = state["step"]
    print(f"Resuming from step {start}")
for step, pack in enumerate(islice(loader, max(0, args.steps - start)), start + 1):
    latents = [model.encode(sample.video) for sample in pack]
    noise = objective.draw(pack, [x0.shape for x0 in latents], seed=SEED)
    sequence = model.pack([layout_of(sample) for sample in pack])
    velocities = model.network(sequence, *objective.inputs(latents, noise))
    loss = objective.losses(velocities, latents, noise).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.9f}")
    if step % SAVE_EVERY == 0 or step == args.steps:
        state = {"network": model.network.state_dict(), "optimizer": optimizer.state_dict()}
        with replacing(checkpoint) as file:  # an interrupted save leaves the previous checkpoint
            torch.save({**state, "loader": loader.state_dict(), "step": step}, file)
