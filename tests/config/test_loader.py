"""From YAML and `key=value` to dataclasses: spellings, precedence, and what is said about mistakes."""

import pickle
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.config import ConfigError, PPOConfig
from verl.config.loader import load, load_config, to_dict, to_yaml


def error_of(*overrides: str, config_file: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides, config_file)
    return str(caught.value)


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str | bytes) -> str:
        path = tmp_path / "run.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    return write


# ---- values ----


def test_nothing_given_is_the_dataclasses_defaults() -> None:
    assert load_config() == PPOConfig()


@pytest.mark.parametrize(
    ("override", "section", "name", "value"),
    [
        ("data.train_batch_size=8", "data", "train_batch_size", 8),
        ("+data.train_batch_size=8", "data", "train_batch_size", 8),
        ("++data.train_batch_size=8", "data", "train_batch_size", 8),
        ("data.train_batch_size='8'", "data", "train_batch_size", 8),
        ("algorithm.gamma=1e-2", "algorithm", "gamma", 0.01),
        ("algorithm.gamma=1", "algorithm", "gamma", 1.0),
        ("trainer.val_only=True", "trainer", "val_only", True),
        ("trainer.val_only=false", "trainer", "val_only", False),
        ("trainer.total_training_steps=null", "trainer", "total_training_steps", None),
        ("trainer.total_training_steps=None", "trainer", "total_training_steps", None),
        ("trainer.resume_from_path=null", "trainer", "resume_from_path", None),
        ("trainer.resume_from_path='null'", "trainer", "resume_from_path", "null"),
        # Strings stay as they are written, whatever YAML would make of them.
        ("trainer.experiment_name=2024_01", "trainer", "experiment_name", "2024_01"),
        ("trainer.experiment_name=on", "trainer", "experiment_name", "on"),
        ("trainer.experiment_name=None", "trainer", "experiment_name", "None"),
        ("trainer.experiment_name=a=b c", "trainer", "experiment_name", "a=b c"),
        ("trainer.experiment_name=", "trainer", "experiment_name", ""),
        ("trainer.experiment_name=key: value", "trainer", "experiment_name", "key: value"),
        ('trainer.experiment_name="a b"', "trainer", "experiment_name", "a b"),
        ("trainer.experiment_name=it's", "trainer", "experiment_name", "it's"),
        ("trainer.default_local_dir=@home/x", "trainer", "default_local_dir", "@home/x"),
        ("trainer.default_local_dir=~/x", "trainer", "default_local_dir", "~/x"),
        ('trainer.logger=["console","wandb"]', "trainer", "logger", ["console", "wandb"]),
        ("trainer.logger=['console','wandb']", "trainer", "logger", ["console", "wandb"]),
        ("trainer.logger=[console, wandb]", "trainer", "logger", ["console", "wandb"]),
        ("trainer.logger=console", "trainer", "logger", ["console"]),
        ("trainer.logger=[]", "trainer", "logger", []),
        ("data.train_files=/a/b c.parquet", "data", "train_files", "/a/b c.parquet"),
        ("data.train_files=['/a/1.parquet','/a/2.parquet']", "data", "train_files", ["/a/1.parquet", "/a/2.parquet"]),
        ("data.val_files=null", "data", "val_files", None),
        ("data.apply_chat_template_kwargs={a:1,b:x}", "data", "apply_chat_template_kwargs", {"a": 1, "b": "x"}),
        ("data.apply_chat_template_kwargs={u: 'http://x'}", "data", "apply_chat_template_kwargs", {"u": "http://x"}),
        (
            "+data.apply_chat_template_kwargs.enable_thinking=False",
            "data",
            "apply_chat_template_kwargs",
            {"enable_thinking": False},
        ),
    ],
)
def test_overrides_as_launch_scripts_write_them(override: str, section: str, name: str, value: object) -> None:
    got = getattr(getattr(load_config([override]), section), name)
    assert got == value
    assert type(got) is type(value)


def test_lists_of_numbers() -> None:
    config = load_config(["actor_rollout_ref.actor.optim.betas=[0.9, 0.95]", "critic.optim.betas=[0,1e-1]"])
    assert config.actor_rollout_ref.actor.optim.betas == [0.9, 0.95]
    assert config.critic.optim.betas == [0.0, 0.1]
    assert load_config(["actor_rollout_ref.rollout.stop_token_ids=[1,2]"]).actor_rollout_ref.rollout.stop_token_ids == [
        1,
        2,
    ]


def test_keys_of_the_users_own_below_a_mapping() -> None:
    config = load_config(
        [
            "actor_rollout_ref.model.override_config.rope_scaling.factor=2.0",
            "actor_rollout_ref.model.override_config.rope_scaling.kind=linear",
            "actor_rollout_ref.model.override_config.num_hidden_layers=2",
        ]
    )
    assert config.actor_rollout_ref.model.override_config == {
        "rope_scaling": {"factor": 2.0, "kind": "linear"},
        "num_hidden_layers": 2,
    }


def test_a_section_can_be_set_as_a_mapping() -> None:
    optim = load_config(["critic.optim={lr: 1e-4, clip_grad: 0.5}"]).critic.optim
    assert (optim.lr, optim.clip_grad, optim.weight_decay) == (1e-4, 0.5, 0.01)


def test_the_last_override_wins() -> None:
    assert load_config(["trainer.seed=1", "trainer.seed=2"]).trainer.seed == 2


@pytest.mark.parametrize(("written", "kept"), [("bfloat16", "bf16"), ("float32", "fp32"), ("bf16", "bf16")])
def test_dtypes_may_be_spelt_as_in_torch(written: str, kept: str) -> None:
    config = load_config(
        [
            f"actor_rollout_ref.actor.fsdp_config.model_dtype={written}",
            f"actor_rollout_ref.rollout.dtype={written}",
            f"critic.fsdp.mixed_precision.reduce_dtype={written}",
        ]
    )
    assert config.actor_rollout_ref.actor.fsdp_config.model_dtype == kept
    assert config.actor_rollout_ref.rollout.dtype == kept
    assert config.critic.fsdp.mixed_precision.reduce_dtype == kept


# ---- mistakes on the command line ----


@pytest.mark.parametrize(
    ("written", "nearest"),
    [
        ("data.train_batchsize", "data.train_batch_size"),
        ("data.trian_batch_size", "data.train_batch_size"),
        ("train_batch_size", "data.train_batch_size"),
        ("rollout.max_prompt_length", "data.max_prompt_length"),
        ("actor_rollout_ref.actor.ppo_minibatch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"),
        ("critic.fsdp_config.param_offload", "critic.fsdp.param_offload"),
        ("rollout.n", "actor_rollout_ref.rollout.n"),
        ("trainer.n_gpu_per_node", "trainer.n_gpus_per_node"),
        (
            "actor_rollout_ref.rollout.gpu_memory_utilisation",
            "actor_rollout_ref.rollout.gpu_memory_utilization",
        ),
        ("reward_model.reward_manger", "reward_model.reward_manager"),
    ],
)
def test_g8_a_misspelt_key_names_the_nearest(written: str, nearest: str) -> None:
    assert error_of(f"{written}=1") == f"unknown key {written} (command line): did you mean {nearest}?"


def test_a_key_like_no_other_points_to_the_list() -> None:
    assert error_of("qqq.zzz=1") == "unknown key qqq.zzz (command line); docs/config.md lists all keys"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.nnodes=two", "trainer.nnodes=two (command line): expected int"),
        ("trainer.nnodes=1.5", "trainer.nnodes=1.5 (command line): expected int"),
        ("trainer.nnodes=null", "trainer.nnodes=null (command line): expected int"),
        ("trainer.nnodes=[1]", "trainer.nnodes=[1] (command line): expected int"),
        (
            "trainer.total_training_steps=1e3",
            "trainer.total_training_steps=1e3 (command line): expected int or null",
        ),
        ("algorithm.gamma=high", "algorithm.gamma=high (command line): expected float"),
        ("trainer.val_only=maybe", "trainer.val_only=maybe (command line): expected bool"),
        (
            "trainer.device=npu",
            "trainer.device=npu (command line): expected one of auto, cpu, cuda",
        ),
        (
            "critic.optim.betas=[a,b]",
            "critic.optim.betas=[a, b] (command line): expected list of float",
        ),
        (
            "data.apply_chat_template_kwargs=3",
            "data.apply_chat_template_kwargs=3 (command line): expected mapping",
        ),
        ("trainer=3", "trainer=3 (command line): trainer is a section; set one of the keys below it"),
        ("trainer.nnodes", "'trainer.nnodes' is no override: write key=value"),
        ("=3", "'=3' is no override: write key=value"),
        ("~trainer.nnodes", "'~trainer.nnodes': keys cannot be removed; set it to null, or leave it out"),
    ],
)
def test_wrong_values_name_key_value_and_expectation(override: str, message: str) -> None:
    assert error_of(override).replace("'", "") == message.replace("'", "")


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["trainer.nnodes=two", "data.train_batchsize=3", "trainer.seed=4"])
    assert caught.value.problems == [
        "trainer.nnodes=two (command line): expected int",
        "unknown key data.train_batchsize (command line): did you mean data.train_batch_size?",
    ]
    assert str(caught.value).splitlines() == [
        "2 problems in the configuration:",
        "  - trainer.nnodes=two (command line): expected int",
        "  - unknown key data.train_batchsize (command line): did you mean data.train_batch_size?",
    ]


def test_the_error_is_a_value_error_that_travels() -> None:
    error = ConfigError(["a", "b"])
    assert isinstance(error, ValueError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is ConfigError and copy.problems == ["a", "b"] and str(copy) == str(error)


# ---- the file ----


def test_overrides_replace_the_file_and_the_file_the_defaults(write) -> None:
    path = write("data:\n  train_batch_size: 8\n  max_prompt_length: 16\ntrainer: {logger: [console]}\n")
    config = load_config(["data.train_batch_size=4"], path)
    assert (config.data.train_batch_size, config.data.max_prompt_length, config.data.max_response_length) == (
        4,
        16,
        512,
    )
    assert config.trainer.logger == ["console"]


def test_a_file_may_have_dotted_keys_scientific_numbers_and_references(write) -> None:
    config = load_config(
        ["data.max_prompt_length=32"],
        write(
            "data.train_batch_size: 8\n"
            "critic.optim: {lr: 1e-4}\n"
            "actor_rollout_ref:\n  rollout:\n    prompt_length: ${data.max_prompt_length}\n"
        ),
    )
    assert (config.data.train_batch_size, config.critic.optim.lr) == (8, 1e-4)
    assert config.actor_rollout_ref.rollout.prompt_length == 32


@pytest.mark.parametrize("text", ["", "# nothing\n", "data: {}\n"])
def test_an_empty_file_changes_nothing(write, text: str) -> None:
    assert load_config([], write(text)) == PPOConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "data:\n  train_batch_size: 8\ntrainer:\n  nnode: 1\n",
            "unknown key trainer.nnode ({path}, line 4): did you mean trainer.nnodes?",
        ),
        ("trainer:\n  nnodes: two\n", "trainer.nnodes=two ({path}, line 2): expected int"),
        ("data:\n  truncation: [\n", "config file {path}, line 3, column 1: expected the node content"),
        ("a: 1\na: 2\n", "config file {path}, line 2, column 1: found duplicate key a"),
        ("- a\n- b\n", "config file {path}: expected `key: value` at the top level"),
        ("just text\n", "config file {path}: expected `key: value` at the top level"),
        (b"a: \xff\xfe\n", "config file {path}: not UTF-8 text at byte 3"),
        (
            "data: {seed: '${trainer.sed}'}\n",
            "data.seed: Interpolation key 'trainer.sed' not found",
        ),
    ],
)
def test_mistakes_in_a_file_name_file_and_line(write, text: str | bytes, message: str) -> None:
    path = write(text)
    assert error_of(config_file=path).startswith(message.format(path=path))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert error_of(config_file=f"{tmp_path}/no.yaml") == f"config file {tmp_path}/no.yaml: No such file or directory"
    assert error_of(config_file=str(tmp_path)) == f"config file {tmp_path}: Is a directory"


# ---- and back ----


def test_yaml_reads_back_as_the_same_config(write) -> None:
    config = load_config(
        [
            "trainer.experiment_name=1e-6",
            "trainer.project_name=null and void",
            "data.train_files=[a,b]",
            "actor_rollout_ref.model.override_config={a: {b: 1e-7}, c: 'on'}",
            "actor_rollout_ref.actor.optim.lr=3e-7",
            "data.chat_template={{ messages }}\\n",
        ]
    )
    assert load_config([], write(to_yaml(config))) == config


@settings(max_examples=30, deadline=None)
@given(
    st.text(st.characters(codec="utf-8", exclude_categories=("C",)), max_size=12).filter(lambda text: "$" not in text)
)
def test_any_string_survives_the_round_trip(text: str) -> None:
    config = PPOConfig()
    config.trainer.experiment_name = text
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.yaml")
        path.write_text(to_yaml(config), encoding="utf-8")
        assert load_config([], str(path)) == config


def test_to_dict_is_plain_and_separate() -> None:
    config = PPOConfig()
    values = to_dict(config)
    assert values["actor_rollout_ref"]["actor"]["optim"]["lr"] == 1e-6
    values["trainer"]["logger"].append("x")
    assert config.trainer.logger == ["console", "file"]


def test_defaults_give_way_to_the_file_and_to_the_command_line(write) -> None:
    defaults = ["trainer.seed=1", "trainer.nnodes=2", "trainer.project_name=a"]
    config = load(PPOConfig, ["trainer.project_name=c"], write("trainer: {nnodes: 3, project_name: b}"), None, defaults)
    assert (config.trainer.seed, config.trainer.nnodes, config.trainer.project_name) == (1, 3, "c")
    with pytest.raises(ConfigError, match=r"unknown key trainer.sed \(defaults\): did you mean trainer.seed\?"):
        load(PPOConfig, defaults=["trainer.sed=1"])


def test_text_in_a_file_stays_as_it_is_written(write) -> None:
    """YAML reads these as 0.52, 24, 2024 and true."""
    text = (
        "algorithm.rollout_correction.rollout_rs_threshold: 0.5_2\ntrainer: {experiment_name: 2_024, project_name: yes}"
    )
    config = load_config([], write(text))
    assert config.algorithm.rollout_correction.rollout_rs_threshold == "0.5_2"
    assert (config.trainer.experiment_name, config.trainer.project_name) == ("2_024", "yes")
