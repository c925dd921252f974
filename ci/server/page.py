"""The page in a headless Chromium: a conversation, its stop button, its settings, by keyboard, on a phone, in the dark."""

import os

from playwright.sync_api import expect, sync_playwright

from program import Server

PHONE = {"width": 360, "height": 640}


def talk(page, text):
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def conversation(page):
    expect(page.get_by_role("status")).to_have_text("tales-bitnet-20m")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Most tokens").fill("40")
    page.get_by_label("Seed").fill("3")
    page.keyboard.press("Escape")
    talk(page, "Once upon a time there was a")
    expect(page.locator(".user")).to_have_text("Once upon a time there was a")
    expect(page.locator(".stats")).to_contain_text("tokens")
    expect(page.locator(".stats")).to_contain_text("tok/s")
    answer = page.locator(".assistant").text_content()
    assert len(answer) > 40, (answer, page.locator(".stats").text_content())
    # The same seed tells the same tale; the settings are kept over a reload.
    page.reload()
    talk(page, "Once upon a time there was a")
    expect(page.locator(".assistant")).to_have_text(answer)
    talk(page, "And then")
    expect(page.locator(".stats")).to_have_count(2)


def stopping(page):
    page.get_by_role("button", name="New chat").click()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Most tokens").fill("900")
    page.get_by_label("Temperature").fill("3")
    page.get_by_label("Top-k").fill("0")
    page.get_by_label("Min-p").fill("0")
    page.get_by_label("Top-p").fill("1")
    page.get_by_role("button", name="Done").click()
    for stop in (lambda: page.get_by_role("button", name="Stop").click(), lambda: page.keyboard.press("Escape")):
        count = page.locator(".stats").count()
        talk(page, "A long tale")
        expect(page.locator(".assistant").last).not_to_have_text("")
        stop()
        expect(page.locator(".stats")).to_have_count(count + 1)
        expect(page.locator(".stats").last).to_contain_text("stopped")
        expect(page.get_by_role("button", name="Send")).to_be_visible()


def errors(page):
    page.get_by_role("button", name="New chat").click()
    talk(page, "word " * 3000)
    expect(page.locator(".error")).to_contain_text("the context")


def looks(page):
    """Nothing sticks out on a phone, and text stands out from its ground, by day and by night."""
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it sticks out"
    for name in ("Send", "Settings", "New chat"):
        box = page.get_by_role("button", name=name).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"] and box["height"] >= 40, (name, box)
    grounds = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colours = page.evaluate("""() => [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]
            .map(text => text.match(/[0-9.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 765)""")
        assert abs(colours[0] - colours[1]) > 0.7, (scheme, colours)
        grounds.add(round(colours[1], 1))
    assert len(grounds) == 2, grounds


def keys(browser):
    """A server with a key: the page asks for it."""
    with Server("--api-key", "sesame") as server:
        page = browser.new_page()
        page.goto(server.url)
        expect(page.get_by_role("status")).to_contain_text("API key")
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("API key").fill("sesame")
        page.get_by_role("button", name="Done").click()
        expect(page.get_by_role("status")).to_have_text("tales-bitnet-20m")
        page.close()


def main():
    arguments = ["--no-sandbox", *os.environ.get("CHROMIUM_ARGUMENTS", "").split()]
    with sync_playwright() as playwright, Server("--slots", "2") as server:
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], headless=True, args=arguments)
        page = browser.new_page()
        complaints = []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.url)
        for part in (conversation, stopping, looks):
            part(page)
            print(f"{part.__name__}: as expected", flush=True)
        # So far nothing may have been complained of; a refused request is, by the browser itself.
        assert not complaints, complaints
        errors(page)
        keys(browser)
        print("errors and keys: as expected", flush=True)
        browser.close()


main()
