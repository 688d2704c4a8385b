"""The openai package for Python against `motley serve`; MOTLEY_URL names the server."""

import json
import os

import openai
from pydantic import BaseModel

client = openai.OpenAI(base_url=os.environ["MOTLEY_URL"] + "/v1", api_key="unused", max_retries=0)
MODEL = client.models.list().data[0].id
HELLO = [{"role": "user", "content": "Say hello to a cat named Tom."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


def chat(**options):
    options = {"model": MODEL, "messages": HELLO, "max_tokens": 24, "temperature": 0, **options}
    return client.chat.completions.create(**options)


def refused(kind, call, *parts):
    """The call must be refused with this kind of error, whose body names these parts."""
    try:
        call()
    except kind as error:
        body = json.dumps(error.body)
        for part in parts:
            assert part in body, (part, body)
        assert set(error.body) == {"message", "type", "param", "code"}, error.body
        return
    raise AssertionError(f"not refused with {kind.__name__}")


def models_are_listed_and_found():
    assert client.models.retrieve(MODEL).id == MODEL
    refused(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"), "model_not_found")


def a_chat_is_answered_with_usage():
    answer = chat()
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert answer.system_fingerprint and answer.id.startswith("chatcmpl-")
    assert chat().choices[0].message.content == choice.message.content, "greedy answers repeat"


def a_streamed_chat_is_the_same_text_and_ends_with_usage():
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == chat().choices[0].message.content
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("stop", "length")


def seeds_repeat_and_differ():
    def draw(seed):
        return chat(seed=seed, temperature=1.5).choices[0].message.content

    assert draw(7) == draw(7)
    assert len({draw(seed) for seed in range(4)}) > 1


def several_choices_and_stop_texts():
    answer = chat(n=3, temperature=1.0, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    whole = chat(max_tokens=40).choices[0].message.content
    stop = whole[len(whole) // 2 :][:4]
    cut = chat(max_tokens=40, stop=[stop]).choices[0]
    assert stop not in cut.message.content and whole.startswith(cut.message.content)
    assert cut.finish_reason == "stop"


def log_probabilities_have_alternatives():
    content = chat(logprobs=True, top_logprobs=3, max_tokens=4).choices[0].logprobs.content
    assert 1 <= len(content) <= 4
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        best = max(token.top_logprobs, key=lambda found: found.logprob)
        assert best.token == token.token, "greedy takes the likeliest"
        assert token.bytes is None or bytes(token.bytes).decode(errors="replace") is not None


def a_bias_bans_and_forces_tokens():
    first = chat(logprobs=True, max_tokens=1).choices[0].logprobs.content[0].token
    import urllib.request

    request = urllib.request.Request(
        os.environ["MOTLEY_URL"] + "/tokenize",
        json.dumps({"content": first}).encode(),
        {"content-type": "application/json"},
    )
    token = json.load(urllib.request.urlopen(request, timeout=30))["tokens"][0]
    other = chat(logprobs=True, max_tokens=1, logit_bias={str(token): -100})
    assert other.choices[0].logprobs.content[0].token != first


def completions_continue_text():
    answer = client.completions.create(
        model=MODEL, prompt=["One, two,", "Red, green,"], max_tokens=6, temperature=0
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.text for choice in answer.choices)
    echoed = client.completions.create(
        model=MODEL, prompt="One, two,", max_tokens=4, temperature=0, echo=True
    )
    assert echoed.choices[0].text.startswith("One, two,")


def completions_score_their_prompt():
    scored = client.completions.create(
        model=MODEL, prompt="One, two, three,", max_tokens=0, echo=True, logprobs=1
    ).choices[0]
    assert scored.text == "One, two, three,"
    first, *rest = scored.logprobs.token_logprobs
    assert first is None and rest and all(value <= 0 for value in rest)


def a_vector_is_made_of_a_text():
    # Without a word on the encoding the package asks for base64 and decodes it.
    for encoding in ({}, {"encoding_format": "float"}):
        answer = client.embeddings.create(model=MODEL, input=["a cat", "a dog"], **encoding)
        vectors = [entry.embedding for entry in answer.data]
        assert len(vectors) == 2 and answer.usage.prompt_tokens > 0
        assert all(abs(sum(x * x for x in vector) - 1) < 1e-3 for vector in vectors)


def forced_json_parses_and_follows_its_schema():
    answer = chat(response_format={"type": "json_object"}, max_tokens=200)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)

    class Animal(BaseModel):
        name: str
        legs: int
        tame: bool

    parsed = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Describe a cat named Tom as JSON."}],
        response_format=Animal,
        max_tokens=200,
        temperature=0,
    )
    assert isinstance(parsed.choices[0].message.parsed, Animal)
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}
    format = {"type": "json_schema", "json_schema": {"name": "bad", "schema": bad, "strict": True}}
    refused(openai.BadRequestError, lambda: chat(response_format=format), "pattern")


def tools_are_called_when_they_must_be():
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = chat(tools=[WEATHER], tool_choice=choice, max_tokens=200).choices[0]
        assert answer.finish_reason == "tool_calls", answer
        call = answer.message.tool_calls[0]
        assert call.function.name == "get_weather" and call.id
        arguments = json.loads(call.function.arguments)
        assert isinstance(arguments["city"], str) and isinstance(arguments["days"], int)
    pieces = [
        chunk.choices[0].delta.tool_calls[0]
        for chunk in chat(tools=[WEATHER], tool_choice="required", max_tokens=200, stream=True)
        if chunk.choices and chunk.choices[0].delta.tool_calls
    ]
    assert pieces[0].function.name == "get_weather" and pieces[0].id
    json.loads("".join(piece.function.arguments or "" for piece in pieces))
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    for tools in ([WEATHER], [strict]):
        free = chat(tools=tools, tool_choice="auto", max_tokens=64).choices[0].message
        for call in free.tool_calls or []:
            json.loads(call.function.arguments)
    assert not chat(tools=[WEATHER], tool_choice="none").choices[0].message.tool_calls


def wrong_requests_are_refused_with_the_field():
    refused(openai.BadRequestError, lambda: chat(temperature=9), "temperature")
    refused(openai.BadRequestError, lambda: chat(messages=[]), "messages")
    refused(openai.NotFoundError, lambda: chat(model="no-such-model"), "model_not_found")
    long = [{"role": "user", "content": "word " * 20000}]
    refused(openai.BadRequestError, lambda: chat(messages=long), "context_length_exceeded")
    refused(openai.BadRequestError, lambda: client.embeddings.create(model=MODEL, input=""))


def main():
    for check in [found for name, found in globals().items() if callable(found) and is_check(name)]:
        check()
        print(f"ok {check.__name__}")


def is_check(name):
    checks = ("models_", "a_", "seeds_", "several_", "log_", "completions_", "forced_", "tools_", "wrong_")
    return name.startswith(checks)


if __name__ == "__main__":
    main()
