// A transcript's words with their punctuation, and its subtitles. Pure.

const LINE = 42, LINES = 2, CUE_S = 7; // as the server cuts them

// The pieces of a text, one for each word that has a time: { start, end, text, space }. Together they are
// the text: each word has the marks around it, and `space` is what stands behind it.
export function wordsInText(text, words) {
  const lower = text.toLowerCase(), found = [];
  let place = 0;
  for (const { word, start, end } of words) {
    const at = lower.indexOf(word.toLowerCase(), place);
    if (at < 0) continue; // the text has another spelling
    const between = text.slice(place, at), spaced = /^.*\s/s.exec(between);
    found.push({ start, end, from: found.length ? place + (spaced?.[0].length ?? between.length) : 0 });
    place = at + word.length;
  }
  return found.map(({ start, end, from }, i) => {
    const piece = text.slice(from, found[i + 1]?.from ?? text.length), shown = piece.trimEnd();
    return { start, end, text: shown, space: piece.slice(shown.length) };
  });
}

// Cues of segments whose words have no times, for captions that the server did not cut: each word gets a
// share of its segment's time by its length.
export function estimateCues(segments) {
  return segments.flatMap(({ start, end, text, speaker }) => {
    const words = text.split(/\s+/).filter(Boolean);
    const total = words.reduce((sum, { length }) => sum + length, 0), cues = [];
    let done = 0, cue = null;
    for (const word of words) {
      const fromS = start + ((end - start) * done) / total;
      done += word.length;
      const toS = start + ((end - start) * done) / total;
      const isOver = cue && (/[.!?…。！？]$/.test(cue.words.at(-1)) || toS - cue.start > CUE_S || linesOf([...cue.words, word]).length > LINES);
      if (!cue || isOver) cues.push((cue = { start: fromS, end: toS, words: [] }));
      cue.words.push(word);
      cue.end = Math.min(toS, cue.start + CUE_S);
    }
    return cues.map((each) => ({ start: each.start, end: each.end, text: linesOf(each.words).join("\n"), ...(speaker && { speaker }) }));
  });
}

function linesOf(words) {
  const lines = [];
  for (const word of words) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && longer.length <= LINE) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

// A line for each turn, after the speaker's name.
export function textBySpeaker(segments) {
  const lines = [];
  for (const { speaker, text } of segments) {
    if (!text.trim()) continue;
    if (lines.at(-1)?.speaker === speaker) lines.at(-1).said.push(text.trim());
    else lines.push({ speaker, said: [text.trim()] });
  }
  return lines.map(({ speaker, said }) => `${speaker}: ${said.join(" ")}`).join("\n");
}

// A file of subtitles: `format` is "srt" or "vtt". Who speaks is written as the server writes it.
export function subtitleFile(cues, format) {
  const mark = format === "srt" ? "," : ".";
  const written = cues.filter(({ text }) => text.trim()).map(({ start, end, text, speaker }, i) =>
    `${format === "srt" ? `${i + 1}\n` : ""}${stamp(start, mark)} --> ${stamp(end, mark)}\n${spokenBy(speaker, format)}${text.replaceAll("-->", "->")}\n`);
  return (format === "vtt" ? "WEBVTT\n\n" : "") + written.join("\n");
}

function spokenBy(speaker, format) {
  const name = (speaker ?? "").replaceAll("-->", "->").split(/\s+/).filter(Boolean).join(" ");
  if (!name) return "";
  return format === "srt" ? `${name}: ` : `<v ${name.replace(/[&<>]/g, "")}>`;
}

function stamp(seconds, mark) {
  const ms = Math.round(seconds * 1000);
  const two = (value) => String(value).padStart(2, "0");
  return `${two(Math.floor(ms / 3_600_000))}:${two(Math.floor(ms / 60_000) % 60)}:${two(Math.floor(ms / 1000) % 60)}${mark}${String(ms % 1000).padStart(3, "0")}`;
}
