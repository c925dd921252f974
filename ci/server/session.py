"""A session with the `openai` package: everything that a program written for OpenAI's API may expect."""

import json
import threading
import time

import jsonschema
import openai

from program import Server, single_user

PROMPT = "Once upon a time there was a"
MESSAGES = [{"role": "user", "content": PROMPT}]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "kind": {"enum": ["fox", "hen", "wolf"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}, "maxItems": 2},
    },
    "required": ["name", "kind", "age", "friends"],
    "additionalProperties": False,
    "$defs": {"friend": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}},
                         "required": ["name"], "additionalProperties": False}},
}

TOOLS = [
    {"type": "function", "function": {
        "name": "feed", "description": "Feeds an animal.", "strict": True,
        "parameters": {"type": "object", "properties": {"animal": {"enum": ["fox", "hen"]}, "meals": {
            "type": "integer", "minimum": 1, "maximum": 3}}, "required": ["animal", "meals"],
            "additionalProperties": False}}},
    {"type": "function", "function": {"name": "sleep", "parameters": {
        "type": "object", "properties": {}, "additionalProperties": False}}},
]


def chat(client, model, **more):
    return client.chat.completions.create(model=model, **{"messages": MESSAGES, "max_tokens": 32, "seed": 7, **more})


def plain(client, model):
    answer = chat(client, model)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == single_user(PROMPT, 32, 7)
    assert answer.choices[0].finish_reason in ("length", "stop")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and usage.completion_tokens <= 32
    again = chat(client, model)
    assert again.choices[0].message.content == answer.choices[0].message.content, "a seed gives the same text"
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    other = chat(client, model, seed=8)
    assert other.choices[0].message.content != answer.choices[0].message.content
    parts = [{"role": "user", "content": [{"type": "text", "text": PROMPT[:9]}, {"type": "text", "text": PROMPT[9:]}]}]
    assert chat(client, model, messages=parts).choices[0].message.content == answer.choices[0].message.content


def streaming(client, model):
    expected = chat(client, model).choices[0].message.content
    chunks = list(chat(client, model, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens <= 32
    assert chunks[-2].choices[0].finish_reason in ("length", "stop")
    assert all(c.usage is None for c in chat(client, model, stream=True)), "no usage unless it is asked for"


def stopping(client, model):
    whole = chat(client, model, temperature=0).choices[0].message.content
    stop = whole[30:33]
    answer = chat(client, model, temperature=0, stop=[stop, "never said"])
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    # A client that breaks off leaves nothing behind.
    with chat(client, model, max_tokens=900, stream=True, logit_bias={"2": -100}) as stream:
        for _, _ in zip(range(3), stream):
            pass


def logprobs(client, model):
    answer = chat(client, model, logprobs=True, top_logprobs=3, temperature=0, logit_bias={"2": -100})
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 32 and all(len(t.top_logprobs) == 3 for t in tokens)
    assert all(t.token == t.top_logprobs[0].token and t.logprob == t.top_logprobs[0].logprob for t in tokens)
    text = b"".join(bytes(t.bytes) for t in tokens).decode()
    assert text == answer.choices[0].message.content
    completion = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, logprobs=2, seed=7)
    found = completion.choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == 8
    assert completion.choices[0].text == single_user(PROMPT, 8, 7)
    biased = chat(client, model, max_tokens=3, logit_bias={"300": 100}, logprobs=True)
    assert len({t.token for t in biased.choices[0].logprobs.content}) == 1


def schemas(client, model):
    format = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}
    for seed in range(5):
        answer = chat(client, model, response_format=format, max_tokens=400, seed=seed)
        assert answer.choices[0].finish_reason == "stop", answer
        jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)
    chunks = chat(client, model, response_format=format, max_tokens=400, stream=True)
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    jsonschema.validate(json.loads(text), SCHEMA)
    # An object without a schema need not end for a model that knows no JSON; as far as it goes it is one.
    answer = chat(client, model, response_format={"type": "json_object"}, max_tokens=60)
    assert answer.choices[0].message.content.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


def tools(client, model):
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    named = {"type": "function", "function": {"name": "feed"}}
    for choice in ("required", named):
        for seed in range(3):
            answer = chat(client, model, tools=TOOLS, tool_choice=choice, max_tokens=200, seed=seed)
            assert answer.choices[0].finish_reason == "tool_calls", answer
            call = answer.choices[0].message.tool_calls[0]
            assert call.type == "function" and (choice == "required" or call.function.name == "feed")
            jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])
    chunks = list(chat(client, model, tools=TOOLS, tool_choice=named, max_tokens=200, stream=True))
    deltas = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices[0].delta.tool_calls]
    assert deltas[0].function.name == "feed" and deltas[0].index == 0 and deltas[0].id
    json.loads("".join(delta.function.arguments for delta in deltas))
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    # The result of a call goes back in.
    messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
                {"role": "tool", "tool_call_id": call.id, "content": "The hen is fed."}]
    assert chat(client, model, messages=messages, tools=TOOLS).choices[0].finish_reason in ("length", "stop")
    assert chat(client, model, tools=TOOLS, tool_choice="none").choices[0].message.tool_calls is None


def errors(client, model, server):
    def fails(kind, param=None, **more):
        try:
            chat(client, model, **more)
        except kind as error:
            assert error.body["message"] and error.param == param, error.body
            return error
        raise AssertionError(f"{more} is taken")

    fails(openai.BadRequestError, "temperature", temperature=-1)
    fails(openai.BadRequestError, "n", n=2)
    fails(openai.BadRequestError, "top_logprobs", logprobs=True, top_logprobs=99)
    fails(openai.BadRequestError, "messages[0].role", messages=[{"role": "wolf", "content": "x"}])
    error = fails(openai.BadRequestError, "messages", messages=[{"role": "user", "content": "word " * 3000}])
    assert error.code == "context_length_exceeded"
    fails(openai.BadRequestError, "response_format", response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wolf"}}})
    try:
        chat(client, model, user="x" * (2 << 20))
        raise AssertionError("a body of 2 MiB is taken")
    except openai.APIStatusError as error:
        assert error.status_code == 413, error
    try:
        chat(client, "gpt-9")
        raise AssertionError("another model answers")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    wrong = openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0)
    try:
        wrong.models.list()
        raise AssertionError("a wrong key opens")
    except openai.AuthenticationError:
        pass
    # More than there are places for.
    outcomes = []

    def ask():
        try:
            chat(client, model, max_tokens=600, logit_bias={"2": -100}, logprobs=True, top_logprobs=20)
            outcomes.append(200)
        except openai.RateLimitError as error:
            assert int(error.response.headers["retry-after"]) >= 1
            outcomes.append(429)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(outcomes) == 8 and outcomes.count(200) >= 2 and 429 in outcomes, outcomes


def ending(server, client, model):
    """SIGTERM while a stream is on its way."""
    stream = chat(client, model, max_tokens=900, stream=True, logit_bias={"2": -100}, logprobs=True, top_logprobs=20)
    first = next(stream)
    status = []
    thread = threading.Thread(target=lambda: status.append(server.terminate()))
    thread.start()
    time.sleep(0.05)
    chunks = [first, *stream]
    assert chunks[-1].choices[0].finish_reason in ("length", "stop"), chunks[-1]
    thread.join()
    assert status == [0], (status, server.lines)


def main():
    with Server("--slots", "2", "--queue", "2", "--api-key", "sesame", "--grace", "1") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="sesame", max_retries=0, timeout=120)
        model = client.models.list().data[0].id
        assert client.models.retrieve(model).id == model
        for part in (plain, streaming, stopping, logprobs, schemas, tools):
            part(client, model)
            print(f"{part.__name__}: as expected", flush=True)
        errors(client, model, server)
        print("errors: as expected", flush=True)
        ending(server, client, model)
        print("ending: as expected", flush=True)


main()
