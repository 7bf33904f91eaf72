"""More OpenMP threads and CUDA in forked workers; children whose end nobody wants to know."""

import signal

import torch
from torch.utils.data import DataLoader, Dataset

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # finds: sigchld-ignored


def more_threads(worker):
    torch.set_num_threads(2)  # finds: forked-openmp


class OnGpu(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        x = torch.ones(1000).cuda()  # finds: cuda-in-worker
        y = torch.ones(1000).to("cuda:0")  # finds: cuda-in-worker
        return x + y + torch.zeros(1000, device="cuda")  # finds: cuda-in-worker


if __name__ == "__main__":
    model = torch.nn.Linear(1000, 1).cuda()
    for batch in DataLoader(OnGpu(), batch_size=2, num_workers=2, worker_init_fn=more_threads):
        model(batch)
