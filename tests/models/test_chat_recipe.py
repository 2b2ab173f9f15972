"""The recipe of izwi-tiny-chat: its questions, their answers, and one step of training."""

from __future__ import annotations

import json
import random
import re

import pytest
import torch

from izwi_models.tiny.recipes.chat import settings
from izwi_models.tiny.recipes.chat.conversations import (
    KINDS,
    draw_dialogue,
    draw_trained,
    encode,
    messages,
    system_message,
)
from izwi_models.tiny.recipes.chat.devices import TOOLS
from izwi_models.tiny.recipes.chat.evaluate import load, score
from izwi_models.tiny.recipes.chat.train import (
    LONGEST_TRAINED,
    Batch,
    ChatTrainer,
    write_folder,
)
from izwi_models.tiny.recipes.chat.units import CONVERSIONS, answer
from izwi_models.tiny.recipes.chat.wording import Draw, split
from izwi_models.tiny.recipes.harness import orthogonal

_CALCULATION = re.compile(r"(\d+) (plus|minus|times|divided by) (\d+) is (minus )?(\d+)\.")


def dialogues(number, **options):
    draw = Draw(random.Random(5), **options)
    return [draw_dialogue(draw, kind) for kind in KINDS for _ in range(number)]


def test_calculations_are_right():
    found = [
        _CALCULATION.fullmatch(turn.answer)
        for dialogue in dialogues(200)
        for turn in dialogue.turns
    ]
    seen = [match.groups() for match in found if match]
    assert len({operation for _, operation, *_ in seen}) == 4
    for a, operation, b, sign, result in seen:
        left, right = int(a), int(b)
        value = {
            "plus": left + right,
            "minus": left - right,
            "times": left * right,
            "divided by": left // max(right, 1),
        }[operation]
        assert value == (-int(result) if sign else int(result))


@pytest.mark.parametrize(
    ("unit", "other", "amount", "said"),
    [
        ("hour", "minute", 2, "2 hours are 120 minutes."),
        ("inch", "foot", 12, "12 inches are 1 foot."),
        ("mile", "kilometer", 10, "10 miles are about 16.1 kilometers."),
        (
            "degree Celsius",
            "degree Fahrenheit",
            37,
            "37 degrees Celsius is 98.6 degrees Fahrenheit.",
        ),
        (
            "degree Fahrenheit",
            "degree Celsius",
            14,
            "14 degrees Fahrenheit is minus 10 degrees Celsius.",
        ),
    ],
)
def test_conversions_are_right(unit, other, amount, said):
    (conversion,) = [c for c in CONVERSIONS if (c.unit, c.other) == (unit, other)]
    assert answer(conversion, amount) == said


def test_held_out_questions_are_never_trained():
    trained = {turn.user for dialogue in dialogues(400) for turn in dialogue.turns}
    held_out = [dialogue.turns[-1].user for dialogue in dialogues(60, held_out=True)]
    seen = [question for question in held_out if question in trained]
    assert len(seen) <= 0.005 * len(held_out), seen


def test_held_out_wordings_are_not_trained_but_their_words_are(monkeypatch):
    plain, seen = Draw._wording, {False: set(), True: set()}

    def recorded(draw, patterns):
        wording = plain(draw, patterns)
        seen[draw.held_out].add((tuple(patterns), wording))
        return wording

    monkeypatch.setattr(Draw, "_wording", recorded)
    for held_out in (False, True):
        dialogues(600, held_out=held_out)
    assert len(seen[True]) > 500
    assert not {wording for _, wording in seen[True]} & {wording for _, wording in seen[False]}
    for patterns, wording in seen[True]:
        trained, held_out = split(patterns)
        assert wording in {each for part in held_out for each in part}
        known = {word for part in trained for each in part for word in each.split()}
        assert known.issuperset(wording.split()), wording


def test_training_draws_every_kind_and_offers_functions_rarely():
    draw = Draw(random.Random(3))
    drawn = [draw_trained(draw) for _ in range(1500)]
    assert {dialogue.kind for dialogue in drawn} == set(KINDS)
    offered = [dialogue for dialogue in drawn if dialogue.tools]
    assert 0.08 < len(offered) / len(drawn) < 0.16
    assert any(turn.calls for dialogue in offered for turn in dialogue.turns)
    lengths = [len(encode(each, "Be short.").ids) for each in drawn]
    assert sum(length > LONGEST_TRAINED for length in lengths) < 0.01 * len(lengths)


def test_orthogonal_updates_keep_singular_vectors_and_equalize_values():
    torch.manual_seed(0)
    for rows, columns in ((24, 16), (16, 24)):
        left, _ = torch.linalg.qr(torch.randn(rows, 8))
        right, _ = torch.linalg.qr(torch.randn(columns, 8))
        matrix = left @ torch.diag(torch.logspace(0, -1, 8)) @ right.T
        even = left.T @ orthogonal(matrix[None])[0] @ right
        sizes = even.diagonal()
        assert (sizes > 0.5).all()
        assert (sizes < 1.5).all()
        assert (even - torch.diag(sizes)).abs().max() < 1e-4
    assert orthogonal(torch.zeros(1, 4, 8)).abs().max() == 0


def test_calls_follow_their_schema():
    calls = [c for d in dialogues(150) for turn in d.turns for c in turn.calls]
    assert {call.name for call in calls} == set(TOOLS)
    types = {"integer": int, "string": str, "boolean": bool}
    for call in calls:
        schema = TOOLS[call.name]["function"]["parameters"]
        assert set(schema["required"]) <= set(call.arguments) <= set(schema["properties"])
        for name, value in call.arguments.items():
            rule = schema["properties"][name]
            assert type(value) is types[rule["type"]]
            assert value in rule.get("enum", [value])
            assert rule.get("minimum", value) <= value <= rule.get("maximum", value)


def test_ids_equal_those_of_the_chat_template():
    """The trainer writes conversations itself; the server writes them by the template."""
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(settings.TEMPLATE)
    dice = random.Random(2)
    for dialogue in dialogues(20):
        system = system_message(dialogue, dice)
        listed = messages(dialogue, system)
        if not system:
            listed = [{"role": "system", "content": ""}, *listed]
        tools = [TOOLS[name] for name in dialogue.tools]
        written = template.render(messages=listed, tools=tools, add_generation_prompt=False)
        for place, token in enumerate(settings.SPECIAL_TOKENS):
            written = written.replace(token, chr(0xE000 + 256 + place))
        ids = [
            value
            for letter in written
            for value in ([ord(letter) - 0xE000] if ord(letter) >= 0xE000 else letter.encode())
        ]
        assert encode(dialogue, system).ids.tolist() == ids


@pytest.mark.slow
def test_training_fits_a_batch_and_resumes_from_its_checkpoint(tmp_path):
    torch.manual_seed(0)
    draw = Draw(random.Random(1))
    rows = [encode(draw_dialogue(draw, "small talk"), "") for _ in range(60)]
    rows = [row for row in rows if len(row.ids) <= 96][:2]
    ids = torch.full((len(rows), 96), settings.PAD)
    weights = torch.zeros(len(rows), 96)
    for place, row in enumerate(rows):
        ids[place, : len(row.ids)] = torch.from_numpy(row.ids)
        weights[place, : len(row.ids)] = torch.from_numpy(row.answers)
    trainer = ChatTrainer(tmp_path / "chat", torch.device("cpu"), seed=0)
    trainer.optimizer.rate.fill_(1e-3)
    losses = []
    for _ in range(8):
        trainer.hold(Batch(ids, weights))
        trainer.optimizer.apply()
        losses.append(trainer.loss(Batch(ids, weights))[0].item())
    assert losses[-1] < 0.6 * losses[0]
    trainer.save()
    again = ChatTrainer(tmp_path / "chat", torch.device("cpu"), seed=1)
    assert again.resumed == len(list(again.weights.views()))
    shares = score(load(tmp_path / "chat", torch.device("cpu")), 1, seed=0).shares()
    assert set(shares) == {*KINDS, "all"}


def test_the_tokenizer_reads_the_written_folder(tmp_path):
    from izwi_models.qwen3.tokenizer import QwenTokenizer

    write_folder(tmp_path)
    tokenizer = QwenTokenizer(tmp_path)
    text = 'Hé, "12 + 7"?\n'
    assert list(tokenizer.encode(text)) == list(text.encode())
    assert tokenizer.id_of("<|im_end|>") == settings.END
    assert tokenizer.id_of("<tool_call>") == settings.TOOL_CALL
