"""A service that rates payments: several threads answer requests with one model."""
import queue
import sys
import threading
import time
import torch
from torch import nn

TRUTH = {
    "cause": "The lock that protects the model is held while the client's profile is fetched from a slow store, so that threads wait for each other's fetches.",
    "lines": ["with self.lock:  # one model, one running mean", "profile = profiles.get(client)  # from the store", "time.sleep(self.latency)", "answers[number] = service.rate(profiles, client, amount)"],
    "says": [r"\block", "mutex", "contention", "serial|one after (the )?(other|another)|one at a time", "sleep|asleep", "critical section", "fetch|profiles?\\.get|latency", "wait"],
    "remedy": ["outside (of )?the lock", "before (taking|acquiring|the lock)", "shorten|narrow|smaller|shrink", "hold .*(shorter|only)", "release", "only .*(model|forward|mean)", "finer",
               "cache|prefetch", "out of the (lock|critical)", "async|concurrent|overlap"],
}
MENDED = "--mended" in sys.argv


class Profiles:
    def __init__(self, latency=0.015):
        self.table, self.latency = torch.randn(500, 64, generator=torch.Generator().manual_seed(1)), latency

    def get(self, client):
        time.sleep(self.latency)
        return self.table[client]


class Service:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(65, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).eval()
        self.lock, self.count, self.sum = threading.Lock(), 0, 0.0

    def score(self, profile, amount):
        score = self.net(torch.cat([profile, amount[None]])).sigmoid().item()
        self.count, self.sum = self.count + 1, self.sum + score
        return score

    @torch.inference_mode()
    def rate(self, profiles, client, amount):
        if MENDED:
            row = profiles.get(client)
            with self.lock:
                return self.score(row, amount)
        with self.lock:  # one model, one running mean
            profile = profiles.get(client)  # from the store
            return self.score(profile, amount)


def work(requests, service, profiles, answers):
    while True:
        try:
            number, client, amount = requests.get_nowait()
        except queue.Empty:
            return
        answers[number] = service.rate(profiles, client, amount)


def main():
    gen = torch.Generator().manual_seed(2)
    service, profiles, requests, answers = Service(), Profiles(), queue.Queue(), {}
    clients, amounts = torch.randint(500, (400,), generator=gen).tolist(), torch.rand(400, generator=gen)
    start = time.time()
    for batch in range(4):
        for number in range(100 * batch, 100 * batch + 100):
            requests.put((number, clients[number], amounts[number]))
        threads = [threading.Thread(target=work, args=(requests, service, profiles, answers)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"{service.count} payments rated, mean risk {service.sum / service.count:.4f}")
    print(f"highest {max(answers.values()):.4f} of {len(answers)}")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
