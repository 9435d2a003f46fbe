"""Short words for keys of a training spec, and keys of reinforcement learning."""

from __future__ import annotations

ALIASES = {
    "dp_shard_size": "policy.parallelism.dp_shard_size",
    "dp_replicate_size": "policy.parallelism.dp_replicate_size",
    "num_gpus": "policy.parallelism.dp_shard_size",  # gpu_spec_key
    "num_nodes": "policy.parallelism.dp_replicate_size",  # node_spec_key
    "num_epochs": "train.epoch",
    "batch_size": "train.train_batch_per_replica",
    "learning_rate": "train.optm_lr",
    "mini_batch": "train.train_policy.mini_batch",
}
"""Short word -> key."""
RL_KEYS = (
    *("variant", "prompt_column_name", "response_column_name", "reward_function", "use_remote_reward", "remote_reward"),
    *("filter_reward_metric", "bypass_reward", "group_reward_calculation", "temperature", "epsilon_low"),
    *("epsilon_high", "advantage_low", "advantage_high", "positive_nll_coef", "lower_bound_ratio", "loss_type"),
    *("unbiased_loss_max_tokens", "unbiased_advantage", "algo", "overlong_reward", "kl_beta", "dpo_reference_policy"),
    *("unbiased_kl_estimate", "off_policy_masking_delta", "aipo_rho", "mu_iterations", "batch_size_per_optimize"),
    *("max_token_len_per_mini_batch", "entropy_coeff", "allowed_outdated_steps", "on_policy"),
    *("uncentralized_training", "outdated_rollout_fetch_batch_size", "max_inflight_steps"),
    *("min_filter_prefix_tokens", "max_retry_for_on_policy", "reference_reset_interval"),
    *("reset_optimizer_with_reference", "use_decoupled_loss", "behav_imp_weight_cap", "rollout_as_token_ids"),
    *("collect_rollout_logprobs", "use_rollout_logprobs_for_loss"),
)
"""Keys of train.train_policy with `type = grpo`."""
RL_TABLES = ("rollout", "distillation", "vla")
"""Tables of reinforcement learning."""
SAMPLING_KEYS = (
    *("temperature", "top_p", "top_k", "repetition_penalty", "n_generation", "max_response_length"),
    *("reward_function", "use_remote_reward", "remote_reward"),
)
"""Keys of `validation` with it."""
