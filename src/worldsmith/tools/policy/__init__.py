"""Robot policies: `worldsmith rollout` runs one in an environment, and `worldsmith serve policy` serves one."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "rollout": Command("run a robot policy in an environment", {"": "worldsmith.tools.policy.rollout:Rollout"}),
    "serve": Command(
        "serve a trained model as a robot policy", {"policy": "worldsmith.tools.policy.serve:ServePolicy"}, by="word"
    ),
}
