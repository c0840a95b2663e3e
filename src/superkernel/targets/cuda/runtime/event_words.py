"""targets.cuda.runtime.event_words: words of events -> addresses at which a kernel can read and write them."""

from __future__ import annotations

import mmap
import threading

from ....model.events import Event
from .device import CudaDevice
from .driver_functions import HOST_PORTABLE_MAPPED, CuCode

_PAGE = mmap.PAGESIZE
_lock = threading.Lock()
# page of the host -> its address on devices, and an event in it: the page is not given back while that exists
_pages: dict[int, tuple[int, Event]] = {}


def event_address(device: CudaDevice, event: Event, where: str) -> int:
    """The page of the word is mapped for all devices when its first event is used. The device is current."""
    page, offset = event.address & -_PAGE, event.address % _PAGE
    with _lock:
        if page not in _pages:
            doing = f"{where}mapping the word of {event!r} for the GPU"
            code = device.driver.code("cuMemHostRegister_v2", page, _PAGE, HOST_PORTABLE_MAPPED)
            if code not in (CuCode.SUCCESS, CuCode.HOST_MEMORY_ALREADY_REGISTERED):  # by another library
                raise device.driver.error(doing, "cuMemHostRegister", code)
            _pages[page] = device.driver.address(doing, "cuMemHostGetDevicePointer_v2", page, 0), event
        return _pages[page][0] + offset
