"""The browser's part of open_webui.py, run by Open WebUI's environment: chats, takes a picture, stops an answer."""

import sys

from playwright.sync_api import sync_playwright

QUESTIONS = ("Hello! What are you?", "What is the capital of France?", "Tell me a short story about a fox.")
LONG = "Tell me a very long story about the sea and a ship."
ANSWER_MS = 180_000


def main() -> None:
    """Prints one word or sentence for each thing that worked."""
    address, token, chromium, picture = sys.argv[1:]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 820})
        page.set_default_timeout(ANSWER_MS)
        page.add_init_script(f"localStorage.setItem('token', '{token}')")
        page.goto(address)
        box = page.locator("#chat-input")
        box.wait_for()
        page.wait_for_timeout(2000)
        page.keyboard.press("Escape")  # what is new in this release
        stop = page.locator("button[aria-label='Stop']").first
        for question in QUESTIONS:
            ask(page, question)
            stop.wait_for()
            stop.wait_for(state="detached")
        print("chats in the browser", flush=True)
        page.screenshot(path=picture)
        print(f"picture in {picture}", flush=True)
        ask(page, LONG)
        stop.wait_for()
        page.wait_for_timeout(700)
        print("writing", flush=True)
        sys.stdin.readline()  # until the other side has looked
        stop.click()
        stop.wait_for(state="detached")
        print("stopped", flush=True)
        browser.close()


def ask(page, text: str) -> None:
    """Types a message and sends it."""
    page.locator("#chat-input").click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


if __name__ == "__main__":
    main()
