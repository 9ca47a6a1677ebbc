"""No secret, person or listed name leaves in a report, whatever stands around it; ordinary lines of logs stay as they were."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.catalog import signatures
from workbench.report.redact import hide_document, redact

LETTERS = string.ascii_letters + string.digits
# what each issuer documents; in the place of {} stands the secret
FORMATS: dict[str, str] = {
    "AWS key id": r"AKIA[A-Z0-9]{16}",
    "AWS temporary key id": r"ASIA[A-Z0-9]{16}",
    "GitHub personal": r"ghp_[A-Za-z0-9]{36}",
    "GitHub server": r"ghs_[A-Za-z0-9]{36}",
    "GitHub fine-grained": r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
    "GitLab": r"glpat-[A-Za-z0-9_]{20}",
    "Hugging Face": r"hf_[A-Za-z]{34}",
    "Weights & Biases": r"wandb_v1_[A-Za-z0-9]{40}",
    "W&B of a server": r"local-[0-9a-f]{40}",
    "NVIDIA NGC": r"nvapi-[A-Za-z0-9_-]{60}[A-Za-z0-9]",
    "OpenAI": r"sk-proj-[A-Za-z0-9_-]{40}[A-Za-z0-9]",
    "Slack": r"xoxb-[0-9]{11}-[0-9]{11}-[A-Za-z0-9]{24}",
    "Google": r"AIza[A-Za-z0-9_-]{34}[A-Za-z0-9]",
    "PyPI": r"pypi-[A-Za-z0-9_-]{60}[A-Za-z0-9]",
    "npm": r"npm_[A-Za-z0-9]{36}",
    "Docker": r"dckr_pat_[A-Za-z0-9_-]{26}[A-Za-z0-9]",
    "Vault": r"hvs\.[A-Za-z0-9_-]{23}[A-Za-z0-9]",
    "JSON Web Token": r"eyJ[A-Za-z0-9_]{16}\.[A-Za-z0-9_]{20}\.[A-Za-z0-9_]{20}",
}
# how secrets without a shape of their own are told: by what stands before them
NAMED: tuple[str, ...] = (
    "export WANDB_API_KEY={}",
    "wandb: Appending key, WANDB_API_KEY: '{}'",
    '{{"aws_secret_access_key": "{}"}}',
    "AWS_SESSION_TOKEN={}",
    "HF_TOKEN={}",
    "HUGGING_FACE_HUB_TOKEN: {}",
    "Authorization: Bearer {}",
    "curl -H 'Authorization: Basic {}'",
    "docker login --password={}",
    "mysql passwd = {}",
    "DefaultEndpointsProtocol=https;AccountKey={};EndpointSuffix=core.windows.net",
    "postgres://app:{}@db.example.org/x",
    "git clone https://{}@github.com/org/repo",
    "https://bucket.s3.amazonaws.com/o?X-Amz-Credential=x&X-Amz-Signature={}&x=1",
    "https://account.blob.core.windows.net/c/b?sv=2024&sig={}",
    "https://hooks.slack.com/services/T000/B000/{}",
    "wandb login --relogin {}",
)
PLAIN = st.text(alphabet=st.characters(blacklist_categories=("Cs",), blacklist_characters="\n"), max_size=40)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class TestSecrets:
    @pytest.mark.parametrize("shape", FORMATS.values(), ids=FORMATS)
    def test_a_token_of_a_known_shape_never_leaves(self, shape: str) -> None:
        """Whatever words, quotes, brackets or columns stand around it."""
        hide = redact()

        @QUICK
        @given(
            st.from_regex(shape, fullmatch=True),
            PLAIN,
            PLAIN,
            st.sampled_from(" '\"=:,;()[]<>|\t"),
            st.sampled_from(" '\",;)]>|\t"),
        )
        def holds(secret: str, before: str, after: str, left: str, right: str) -> None:
            assert secret not in hide(f"{before}{left}{secret}{right}{after}")

        holds()

    @pytest.mark.parametrize("line", NAMED)
    def test_what_stands_behind_a_telling_name_never_leaves(self, line: str) -> None:
        """A secret without a shape is told by its name or its place."""
        hide = redact()

        @QUICK
        @given(st.from_regex(r"[0-9a-f]{40}", fullmatch=True))
        def holds(secret: str) -> None:
            assert secret not in hide(line.format(secret))

        holds()

    def test_a_private_key_goes_as_a_whole(self) -> None:
        """Also one whose end was cut off."""
        body = "\n".join(["b3BlbnNzaC1rZXktdjEAAAAABG5vbmU"] * 4)
        whole = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}\n-----END OPENSSH PRIVATE KEY-----"

        assert redact()(f"a {whole} b") == "a [key] b"
        assert "b3Blbn" not in redact()(whole[:80])

    def test_mail_addresses_go_and_units_stay(self) -> None:
        """`slurmd@gpu.service` is no address of a person."""
        hide = redact()

        assert hide("mail jane.doe+gpu@example.co.uk now") == "mail [email] now"
        for line in (
            "Started slurmd@gpu.service",
            "user@1000.service: Succeeded",
            "memcpy@@GLIBC_2.14",
            "root@gpu-7:~# nvidia-smi",
        ):
            assert hide(line) == line

    @QUICK
    @given(PLAIN, st.sampled_from(sorted(FORMATS.values())), st.data())
    def test_hiding_twice_changes_nothing_more(self, before: str, shape: str, data: st.DataObject) -> None:
        """What was put in a secret's place is no secret."""
        hide = redact(["node-7"], people=["alice"])
        once = hide(f"{before} {data.draw(st.from_regex(shape, fullmatch=True))} password=abc123 user=alice x@y.org node-7")

        assert hide(once) == once


class TestPeople:
    @pytest.mark.parametrize(
        "line",
        [
            'Traceback: File "/home/alice/train.py", line 3',
            "/mnt/home/alice: Stale file handle",
            "alice@gpu-7:/data$ python train.py",
            "(base) [alice@gpu-7 ~]$ srun hostname",
            "JobId=7 UserId=alice(1234) GroupId=ml(5)",
            '{"user": "alice", "job": 7}',
            "SLURM_JOB_USER=alice",
            "job of Alice was cancelled by alice",
        ],
    )
    def test_people_are_never_named(self, line: str) -> None:
        """By place, by field, and by name where the evidence tells the accounts."""
        assert "alice" not in redact(people=["alice"])(line).lower()

    def test_a_persons_name_inside_a_word_stays(self) -> None:
        """`ann` is in `annotation`."""
        assert redact(people=["ann"])("annotation of ann") == "annotation of [user]"


class TestOrdinary:
    def test_lines_that_the_catalog_knows_stay_as_they_are(self) -> None:
        """Redaction that eats evidence is worse than none: only the folder of a scratch file may go."""
        hide = redact()
        changed = [row.id for row in signatures().values() if hide(row.example) != row.example]

        assert set(changed) <= {row.id for row in signatures().values() if "/scratch/" in row.example}

    @pytest.mark.parametrize(
        "line",
        [
            "num_tokens=4096 tokens_per_second: 1234567890123456789",
            "eos_token: <|endoftext|>",
            "commit 0123456789abcdef0123456789abcdef01234567",
            "user 0m0.5s sys 0m0.1s",
            "key: value",
            "NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
            "torch.distributed.elastic.agent.server.api:Received 15 death signal",
            "pci@0000:3b:00.0",
            "http://gpu-7:9400/metrics",
        ],
    )
    def test_what_only_looks_like_a_secret_stays(self, line: str) -> None:
        """Numbers, commits, words of models."""
        assert redact()(line) == line


class TestDocument:
    def test_closed_words_and_our_own_keys_stay(self) -> None:
        """A machine reads them; names in keys (the skew of clocks) go."""
        document = {
            "class": "hardware/nvlink",
            "summary": "hardware of node-7",
            "clock_skew": {"node-7": 1.0},
            "evidence": [{"text": "node-7"}],
        }

        made = hide_document(document, redact(["hardware", "node-7", "evidence"]))

        assert made["class"] == "hardware/nvlink"
        assert "node-7" not in str(made)
        assert set(made) == set(document)
        assert re.fullmatch(r"\[name-\d\] of \[name-\d\]", made["summary"])
