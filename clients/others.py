"""litellm and the ollama package against `motley serve`; MOTLEY_URL names the server."""

import os

# Nothing is looked up or reported outside.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LITELLM_TELEMETRY"] = "False"

import litellm
import ollama

URL = os.environ["MOTLEY_URL"]
MESSAGES = [{"role": "user", "content": "Say hello to a cat named Tom."}]

litellm.telemetry = False


def litellm_talks_openai():
    options = dict(
        model="openai/default", api_base=URL + "/v1", api_key="unused", messages=MESSAGES,
        max_tokens=16, temperature=0, num_retries=0,
    )
    model = ollama.Client(host=URL).list().models[0].model
    options["model"] = "openai/" + model
    answer = litellm.completion(**options)
    assert answer.choices[0].message.content
    chunks = litellm.completion(**options, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == answer.choices[0].message.content
    options.pop("messages"), options.pop("max_tokens"), options.pop("temperature")
    assert litellm.embedding(**options, input=["a cat"]).data[0]["embedding"]


def ollama_lists_shows_and_chats():
    client = ollama.Client(host=URL)
    model = client.list().models[0].model
    assert client.show(model).details.family
    assert client.ps().models[0].model == model
    answer = client.chat(model, MESSAGES, options={"temperature": 0, "num_predict": 16})
    assert answer.message.content and answer.done and answer.eval_count > 0
    parts = list(client.chat(model, MESSAGES, stream=True, options={"temperature": 0, "num_predict": 16}))
    assert "".join(part.message.content for part in parts) == answer.message.content
    assert parts[-1].done_reason in ("stop", "length")
    text = client.generate(model, "One, two,", raw=True, options={"num_predict": 4}).response
    assert text
    vectors = client.embed(model, ["a cat", "a dog"]).embeddings
    assert len(vectors) == 2 and len(vectors[0]) == len(vectors[1]) > 0
    try:
        client.chat("no-such-model", MESSAGES)
    except ollama.ResponseError as error:
        assert error.status_code == 404
    else:
        raise AssertionError("an unknown model was not refused")


def main():
    for check in (litellm_talks_openai, ollama_lists_shows_and_chats):
        check()
        print(f"ok {check.__name__}")


if __name__ == "__main__":
    main()
