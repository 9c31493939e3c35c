"""Token data: text or ids in, `.bin/.idx` pairs out, in two stages of which both can be killed and go on."""
