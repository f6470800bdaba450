// Sends requests to the gateway that served this page, with the key if there is one, and reads streamed replies.

const STORED = "fetchwise-key";

/** Store a key until this tab is closed; it is sent only to this gateway. */
export function useKey(key) {
  sessionStorage.setItem(STORED, key.trim());
}

/** Send one request. The path is relative, so it stays on this host and below its prefix. */
export function send(path, { body, signal } = {}) {
  const key = sessionStorage.getItem(STORED);
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  if (body === undefined) return fetch(path, { headers, signal });
  headers["content-type"] = "application/json";
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** The server-sent events of a reply, as [name, data]; comments are skipped. */
export async function* eventsOf(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const field = (name) => block.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      if (field("event")) yield [field("event"), JSON.parse(field("data"))];
    }
  }
}
