"""The page's modules that need no browser, run by node: words, subtitles, levels, charts."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import izwi_web
from izwi_api.services.transcription.subtitles import cue_lines

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    copied = tmp_path_factory.mktemp("page")
    for script in Path(izwi_web.__file__).parent.glob("*.js"):
        shutil.copy(script, copied)
    (copied / "package.json").write_text('{"type": "module"}')
    return copied


@pytest.fixture
def run(folder):
    """Run a function body of JavaScript with a module's exports; return its result."""

    def evaluate(module, body, *values):
        code = (
            f'import * as module from "./{module}";\n'
            f"const made = ((m, ...values) => {{ {body} }})(module, ...{json.dumps(values)});\n"
            "console.log(JSON.stringify(made));"
        )
        done = subprocess.run(
            [NODE, "--input-type=module", "-e", code], cwd=folder, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    return evaluate


def timed(*words):
    return [{"word": word, "start": n, "end": n + 0.5} for n, word in enumerate(words)]


@pytest.mark.parametrize(
    ("text", "words", "pieces"),
    [
        ("Hello, world!", ["Hello", "world"], ["Hello,", "world!"]),
        (
            'He said: "So be it." (Twice)',
            ["he", "said", "so", "be", "it", "twice"],
            ["He", "said:", '"So', "be", 'it."', "(Twice)"],
        ),
        ("It costs 3.5 euros.", ["It", "costs", "other", "euros"], ["It", "costs 3.5", "euros."]),
        ("你好，世界。", ["你", "好", "世", "界"], ["你", "好，", "世", "界。"]),
        ("…well", ["well"], ["…well"]),
        ("", [], []),
    ],
)
def test_words_keep_the_marks_around_them(run, text, words, pieces):
    made = run("subtitles.js", "return m.wordsInText(...values)", text, timed(*words))
    assert [piece["text"] for piece in made] == pieces
    assert "".join(piece["text"] + piece["space"] for piece in made) == text


def test_captions_become_readable_subtitles(run):
    text = "The red house is near the river. The train leaves at seven. " + "and so on " * 20
    segments = [{"start": 0, "end": 30, "text": text}, {"start": 30, "end": 31, "text": " "}]
    cues = run("subtitles.js", "return m.estimateCues(...values)", segments)
    assert cues[0]["text"] == "The red house is near the river."
    assert cues[1]["text"] == "The train leaves at seven."
    assert " ".join(" ".join(cue["text"] for cue in cues).split()) == text.strip()
    for cue in cues:
        lines = cue["text"].split("\n")
        assert len(lines) <= 2
        assert all(len(line) <= 42 for line in lines)
        assert len(cue_lines(" ".join(lines))) <= 2
        assert 0 < cue["end"] - cue["start"] <= 7
    written = run("subtitles.js", "return m.subtitleFile(...values)", cues, "srt")
    assert written.startswith("1\n00:00:00,000 --> 00:00:0")
    assert written.endswith("\n")
    assert not written.endswith("\n\n")
    blank = run("subtitles.js", 'return m.subtitleFile([{start: 0, end: 1, text: " "}], "vtt")')
    assert blank == "WEBVTT\n\n"


def test_subtitles_and_text_have_the_names_of_speakers(run):
    segments = [
        {"start": 0, "end": 2, "text": "Hello there.", "speaker": "ann"},
        {"start": 2, "end": 3, "text": "How are you?", "speaker": "ann"},
        {"start": 3, "end": 4, "text": "Fine.", "speaker": "<B>"},
    ]
    cues = run("subtitles.js", "return m.estimateCues(...values)", segments)
    assert [cue["speaker"] for cue in cues] == ["ann", "ann", "<B>"]
    srt, vtt = (
        run("subtitles.js", "return m.subtitleFile(...values)", cues, k) for k in ("srt", "vtt")
    )
    assert srt.splitlines()[2::4] == ["ann: Hello there.", "ann: How are you?", "<B>: Fine."]
    assert vtt.splitlines()[3::3] == ["<v ann>Hello there.", "<v ann>How are you?", "<v B>Fine."]
    text = run("subtitles.js", "return m.textBySpeaker(...values)", segments)
    assert text == "ann: Hello there. How are you?\n<B>: Fine."


def test_the_first_audible_sound_is_found_behind_silence_and_a_click(run):
    body = """
      const samples = new Float32Array(24000);
      samples[100] = 0.004;  // a start transient of -48 dBFS
      for (let i = 9600; i < 24000; i++) samples[i] = 0.1 * Math.sin(i / 10);
      return [m.firstAudible(samples, 24000), m.firstAudible(samples.subarray(0, 9600), 24000)];
    """
    assert run("latency.js", body) == [0.4, None]


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_the_last_word_is_the_last_sound_above_the_noise(run, noise):
    body = """
      const levels = new m.SpokenLevels(), [noise] = values;
      for (let at = 0; at < 100; at++) {  // pieces of 40 ms; speech from 1 s to 2 s
        const samples = new Float32Array(960);
        const peak = at >= 25 && at < 50 ? 0.2 : noise;
        for (let i = 0; i < 960; i++) samples[i] = peak * Math.sin(i / 5);
        levels.push(samples, 24000, (at + 1) * 40);
      }
      return [levels.lastSpeechMs(4000), levels.lastSpeechMs(1500), levels.lastSpeechMs(0)];
    """
    assert run("latency.js", body, noise) == [2000, 1500, None]


def test_phases_follow_each_other(run):
    turn = {"lastWord": 1000, "stopped": 1500, "text": 1400, "audio": 1600, "audible": 1800}
    made = run("latency.js", "return m.phasesOf(...values)", turn)
    assert [(phase["fromMs"], phase["toMs"]) for phase in made] == [
        (0, 500),
        (None, None),  # it was not transcribed
        (400, 400),  # the answer was prepared before the end of the turn was noticed
        (500, 600),
        (600, 800),
    ]


@pytest.mark.parametrize(
    ("text", "heard", "length"),
    [("One two.", "One", 3), ("One  two.", "One two", 8), ("One", "", 0), ("One", "Two", 0)],
)
def test_heard_length_of_an_answer_ends_at_a_word(run, text, heard, length):
    assert run("conversation.js", "return m.heardLength(...values)", text, heard) == length


def test_a_line_breaks_where_there_is_no_figure(run):
    points = [{"atMs": n * 100, "value": value} for n, value in enumerate([0, 2, None, 1])]
    runs = run("chart.js", "return m.runsOf(...values)", points, 300, 64)
    assert [len(made) for made in runs] == [2, 1]
    assert runs[0][1] == [100, 6]
    assert runs[1][0][0] == 300


# What captions use of a page: elements with children, and a socket that a test speaks for.
PAGE = """
class Element {
  constructor() { this.children = []; this.attributes = {}; }
  append(...all) { this.children.push(...all.map((one) => this.adopted(one))); }
  adopted(one) { if (one instanceof Element) one.parent = this; return one; }
  replaceChildren(...all) { this.children = []; this.append(...all); }
  before(...all) {
    const { children } = this.parent;
    children.splice(children.indexOf(this), 0, ...all.map((one) => this.parent.adopted(one)));
  }
  setAttribute(name, value) { this.attributes[name] = value; }
  set className(value) { this.attributes.class = value; }
  get textContent() { return this.children.map((one) => one.textContent ?? one).join(""); }
  set textContent(value) { this.children = value === "" ? [] : [value]; }
}
globalThis.document = { createElement: () => new Element(), getElementById: () => null };
globalThis.location = { href: "http://here/" };
globalThis.sessionStorage = { getItem: () => null };
globalThis.WebSocket = class { static OPEN = 1; send() {} close() {} };
"""
SHOWN = """
const place = new Element(), captions = new m.Captions(place, {}, () => {});
for (const event of values[0]) captions.receive(event);
captions.finish().then((all) => console.log(JSON.stringify([
  place.children.filter((one) => one.textContent)
    .map((one) => [one.attributes.class, one.textContent]), all.segments,
])));
"""


def captioned(folder, events):
    """The captions' elements, as pairs of class and text, and what they keep."""
    code = (
        f'{PAGE}\nconst m = await import("./captions.js"); const values = {json.dumps([events])};'
        f"\n{SHOWN}"
    )
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", code], cwd=folder, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def heard(segment, text, speaker=None):
    place = {"segment": segment, "start": segment, "end": segment + 1}
    named = {} if speaker is None else {"speaker": speaker}
    return {"type": "transcript.segment", "text": text, **place, **named}


def test_captions_name_speakers_once_each_in_a_colour(folder):
    partial = {"stable": "When does", "unstable": " it", "segment": 0, "start": 0, "end": 1}
    shown, kept = captioned(
        folder,
        [
            {"type": "transcript.partial", **partial},
            heard(0, "When does it leave?", "ann"),
            heard(1, "At seven.", "A"),
            heard(1, "In the morning?", "ann"),  # the same segment, divided
            heard(2, "Thank you.", "ann"),
        ],
    )
    assert shown == [
        ["who speaker-1", "ann"],
        ["caption speaker-1", "When does it leave?"],
        ["who speaker-2", "A"],
        ["caption speaker-2", "At seven."],
        ["who speaker-1", "ann"],
        ["caption speaker-1", "In the morning?"],
        ["caption speaker-1", "Thank you."],
    ]
    assert [(one["speaker"], one["text"]) for one in kept] == [
        ("ann", "When does it leave?"),
        ("A", "At seven."),
        ("ann", "In the morning?"),
        ("ann", "Thank you."),
    ]


def test_captions_without_speakers_have_no_names(folder):
    shown, kept = captioned(folder, [heard(0, "Good morning."), heard(1, "")])
    assert shown == [["caption", "Good morning."]]
    assert kept == [{"start": 0, "end": 1, "text": "Good morning."}]
