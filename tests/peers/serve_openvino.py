"""OpenVINO GenAI's continuous batching behind the smallest OpenAI-like server, run by the interpreter of the peer's
environment: FILE PORT THREADS SLOTS CONTEXT CACHE.

The library has no HTTP server of its own. This one costs it little: one thread steps the pipeline, tokens become text
by a table, and each goes out as one event.
"""

import asyncio
import json
import sys
import threading
import time

import openvino_genai
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

MODEL = "SmolLM2-135M-Instruct"


class Pipeline:
    """Runs the pipeline in a thread. The tokens of a request come through an asyncio queue."""

    def __init__(self, file, threads, slots, context, cache):
        config = openvino_genai.SchedulerConfig()
        config.cache_size = 2
        config.max_num_seqs = slots
        config.enable_prefix_caching = cache
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            file, config, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self.tokenizer = self._pipeline.get_tokenizer()
        self._text = {number: word.decode("utf-8", "replace") for word, number in self.tokenizer.get_vocab().items()}
        self._lock, self._numbers = threading.Condition(), 0
        self._new, self._handles = [], {}
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, prompt, most):
        """A queue of (token, text) pairs, followed by the reason for the end."""
        queue, loop = asyncio.Queue(), asyncio.get_running_loop()
        with self._lock:
            self._new.append((prompt, most, lambda item: loop.call_soon_threadsafe(queue.put_nowait, item)))
            self._lock.notify()
        return queue

    def _run(self):
        while True:
            with self._lock:
                while not self._new and not self._handles:
                    self._lock.wait()
                new, self._new = self._new, []
            for prompt, most, put in new:
                config = openvino_genai.GenerationConfig()
                config.max_new_tokens, config.do_sample, config.apply_chat_template = most, False, False
                self._numbers += 1
                self._handles[self._numbers] = (self._pipeline.add_request(self._numbers, prompt, config), put)
            self._pipeline.step()
            for number, (handle, put) in list(self._handles.items()):
                ended = handle.get_status() != openvino_genai.GenerationStatus.RUNNING
                while handle.can_read():
                    for output in handle.read().values():
                        for token in output.generated_ids:
                            put((token, self._text.get(token, "")))
                if ended:
                    del self._handles[number]
                    put("length")


def main():
    file, port, threads, slots, context, cache = sys.argv[1:]
    pipeline = Pipeline(file, int(threads), int(slots), int(context), cache == "on")

    async def models(request):
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def chat(request):
        body = await request.json()
        prompt = pipeline.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        length = pipeline.tokenizer.encode(prompt, add_special_tokens=False).input_ids.shape[1]
        queue = pipeline.submit(prompt, body["max_tokens"])
        head = {"id": "c", "object": "chat.completion.chunk", "created": int(time.time()), "model": MODEL}

        def event(choices, **more):
            return f"data: {json.dumps({**head, 'choices': choices, **more})}\n\n"

        async def events():
            count = 0
            while (item := await queue.get()) != "length":
                count += 1
                yield event([{"index": 0, "delta": {"content": item[1]}, "finish_reason": None}])
            yield event([{"index": 0, "delta": {}, "finish_reason": "length"}])
            yield event([], usage={"prompt_tokens": length, "completion_tokens": count, "total_tokens": length + count})
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    routes = [Route("/v1/models", models), Route("/v1/chat/completions", chat, methods=["POST"])]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=int(port), log_level="warning")


main()
