"""Synthetic datasets, the metric that measures what a model learned from them, and their commands."""

CLASSES = {
    "dataset moving-shapes": "worldsmith.demo.commands:MakeMovingShapes",
    "dataset falling-objects": "worldsmith.demo.commands:MakeFallingObjects",
    "evaluate --prompts": "worldsmith.demo.measure_adherence:MeasureAdherence",
}
METRICS = {"shapes": "worldsmith.demo.adherence:Shapes"}
