"""`worldsmith dataset`: writes or shows a dataset. `worldsmith/demo/` adds the synthetic ones."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "dataset": Command(
        "create, import, convert or preview a dataset",
        {
            "import": "worldsmith.tools.datasets.import_clips:ImportClips",
            "caption": "worldsmith.tools.datasets.caption_clips:CaptionClips",
            "videophy2": "worldsmith.tools.datasets.videophy2:PrepareVideoPhy2",
            "preview": "worldsmith.tools.datasets.preview_chats:PreviewChats",
            "annotate-fps": "worldsmith.tools.datasets.annotate_fps:AnnotateFps",
            "statistics": "worldsmith.tools.datasets.statistics:ComputeStatistics",
        },
        by="word",
    ),
}
