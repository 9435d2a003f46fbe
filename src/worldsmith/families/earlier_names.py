"""Module paths of config classes in earlier versions, which stored configs may contain, and the current ones."""

NEW_NAMES = (
    {
        f"worldsmith.models.{earlier}": f"worldsmith.families.{now}"
        for earlier, now in {
            "cogvideox.architecture.NetworkConfig": "cogvideox.architecture.NetworkConfig",
            "cogvideox.defaults.SamplingConfig": "cogvideox.model.SamplingConfig",
            "cogvideox.generator.CogVideoXGenerator": "cogvideox.model.CogVideoXGenerator",
            "cogvideox.image_input.ImageConfig": "cogvideox.architecture.ImageConfig",
            "cosmos3.architecture.NetworkConfig": "cosmos3.network.architecture.NetworkConfig",
            "cosmos3.attention.modes.NeighborhoodConfig": "cosmos3.attention.modes.NeighborhoodConfig",
            "cosmos3.generator.Cosmos3Generator": "cosmos3.model.Cosmos3Generator",
            "cosmos3.text_tokenizer.TextTokenizer": "cosmos3.text_tokenizer.TextTokenizer",
            "flux.architecture.NetworkConfig": "flux.architecture.NetworkConfig",
            "flux.generator.FluxGenerator": "flux.model.FluxGenerator",
            "flux.text_encoder.FluxTextEncoder": "flux.text_encoder.FluxTextEncoder",
            "pipeline.model.PipelineModel": "diffusers_pipeline.model.PipelineModel",
            "pipeline.text_encoder.T5TextEncoder": "diffusers_pipeline.text_encoder.T5TextEncoder",
            "pipeline.text_encoder.UMT5TextEncoder": "diffusers_pipeline.text_encoder.UMT5TextEncoder",
            "vision_language.model.VisionLanguageModel": "vision_language.model.VisionLanguageModel",
            "vision_language.policy.BackboneConfig": "vision_language.policy.BackboneConfig",
            "vision_language.policy.FreezeConfig": "vision_language.policy.FreezeConfig",
            "vision_language.policy.PolicyConfig": "vision_language.policy.PolicyConfig",
            "wan.architecture.NetworkConfig": "wan.architecture.NetworkConfig",
            "wan.generator.WanGenerator": "wan.model.WanGenerator",
            "wan.image_encoder.WanImageEncoder": "wan.image_encoder.WanImageEncoder",
        }.items()
    }
    | {
        f"worldsmith.training.{earlier}": f"worldsmith.training.{now}"
        for earlier, now in {
            "callbacks.bad_batches.BadBatches": "callbacks.failures.BadBatches",
            "callbacks.compile_tokenizer.CompileTokenizer": "callbacks.step_speed.CompileTokenizer",
            "callbacks.device_monitor.DeviceMonitor": "callbacks.metrics.DeviceMonitor",
            "callbacks.first_step_watchdog.FirstStepWatchdog": "callbacks.failures.FirstStepWatchdog",
            "callbacks.heart_beat.HeartBeat": "callbacks.progress.HeartBeat",
            "callbacks.iter_speed.IterSpeed": "callbacks.progress.IterSpeed",
            "callbacks.manual_gc.ManualGC": "callbacks.step_speed.ManualGC",
            "callbacks.norm_monitor.NormMonitor": "callbacks.metrics.NormMonitor",
            "callbacks.param_count.ParamCount": "callbacks.metrics.ParamCount",
            "callbacks.parameters.NormMonitor": "callbacks.metrics.NormMonitor",
            "callbacks.parameters.ParamCount": "callbacks.metrics.ParamCount",
            "callbacks.profiler.Profiler": "callbacks.step_speed.Profiler",
            "callbacks.profiling.DeviceMonitor": "callbacks.metrics.DeviceMonitor",
            "callbacks.profiling.Profiler": "callbacks.step_speed.Profiler",
            "callbacks.run_page.RunPage": "callbacks.run_reports.RunPage",
            "callbacks.run_plan.RunPlan": "callbacks.run_reports.RunPlan",
            "gradients.loss_scale.LossScaler": "optimizer.LossScaler",
            "loop_config.LoopConfig": "run_config.LoopConfig",
            "loss_scale.LossScaler": "optimizer.LossScaler",
        }.items()
    }
    | {
        f"worldsmith.families.{earlier}": f"worldsmith.families.{now}"
        for earlier, now in {
            "cogvideox.defaults.SamplingConfig": "cogvideox.model.SamplingConfig",
            "cogvideox.image_input.ImageConfig": "cogvideox.architecture.ImageConfig",
            "cogvideox.sampling.SamplingConfig": "cogvideox.model.SamplingConfig",
            "ltx_video.encoders.LTXTextEncoder": "ltx_video.model.LTXTextEncoder",
            "ltx_video.encoders.LTXVideoVAE": "ltx_video.model.LTXVideoVAE",
            "ltx_video.network.NetworkConfig": "ltx_video.model.NetworkConfig",
        }.items()
    }
    | {
        f"worldsmith.actions.{earlier}": f"worldsmith.{now}"
        for earlier, now in {
            "answers.infer.AskModel": "tools.infer.infer.Infer",
            "answers.judge.JudgeAnswers": "tools.evaluate.evaluate_answers.EvaluateAnswers",
            "datasets.annotate_fps.AnnotateFps": "tools.datasets.annotate_fps.AnnotateFps",
            "datasets.check.CheckData": "tools.check.check.CheckData",
            "datasets.encode.Encode": "tools.encode.encode.Encode",
            "datasets.import_clips.ImportClips": "tools.datasets.import_clips.ImportClips",
            "datasets.made_clips.MakeFallingObjects": "demo.commands.MakeFallingObjects",
            "datasets.made_clips.MakeMovingShapes": "demo.commands.MakeMovingShapes",
            "datasets.preview_chats.PreviewChats": "tools.datasets.preview_chats.PreviewChats",
            "datasets.videophy2.PrepareVideoPhy2": "tools.datasets.videophy2.PrepareVideoPhy2",
            "outputs.adherence.MeasureAdherence": "demo.measure_adherence.MeasureAdherence",
            "outputs.generate.GenerateVideos": "tools.generate.generate.GenerateVideos",
            "outputs.measure.MeasureVideos": "tools.evaluate.evaluate_videos.EvaluateVideos",
            "plan_run.PlanRun": "tools.plan.plan.PlanRun",
            "rehearse_run.Rehearse": "tools.rehearse.rehearse.Rehearse",
            "weights.convert.Convert": "tools.export.convert.Convert",
            "weights.export.Export": "tools.export.export.Export",
        }.items()
    }
    | {
        "worldsmith.models.video_vae.moments.ImageVAE": "worldsmith.models.video_vae.posterior.ImageVAE",
        "worldsmith.tools.lineage.draw.ShowLineage": "worldsmith.tools.lineage.show_lineage.ShowLineage",
    }
)
