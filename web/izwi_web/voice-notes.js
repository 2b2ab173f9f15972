// What voices sound like, in words.

// Of the embedded model: our own.
const EMBEDDED = {
  amber: "American English, a woman, middle pitch", basil: "British English, a man, rather low",
  clara: "British English, a woman, high", dorian: "American English, a man, low",
  edith: "American English, a woman, middle pitch", felix: "American English, a man, middle pitch",
  greta: "British English, a woman, middle pitch", hugo: "American English, a man, rather low",
};
// Of Qwen3-TTS with speakers of its own: as its authors describe them.
const QWEN = {
  vivian: "Young woman, bright; Chinese", serena: "Young woman, warm and gentle; Chinese", uncle_fu: "Older man, low and mellow; Chinese",
  dylan: "Young man, clear; Beijing Chinese", eric: "Man, lively and husky; Sichuan Chinese", ryan: "Man, dynamic and rhythmic; English",
  aiden: "American man, sunny; English", ono_anna: "Young woman, playful; Japanese", sohee: "Woman, warm; Korean",
};

export function describe({ name, kind, model, ref_text: said, prompt, created_at: createdS }) {
  if (kind === "cloned") {
    if (prompt) return prompt;
    const day = createdS ? `Added ${new Date(1000 * createdS).toLocaleDateString()}` : "Added here";
    return said ? `${day} from: “${said}”` : day;
  }
  const own = /izwi-tiny/.test(model ?? "") ? EMBEDDED : QWEN;
  return own[name.toLowerCase()] ?? `A speaker of ${model ?? "this server"}`;
}
